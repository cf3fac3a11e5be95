//! The instructions that are needed.

/// Registers: what a call returns, its arguments, some that calls keep, the frame.
pub const R0: u8 = 0;
pub const R1: u8 = 1;
pub const R2: u8 = 2;
pub const R3: u8 = 3;
pub const R4: u8 = 4;
pub const R5: u8 = 5;
pub const R6: u8 = 6;
pub const R7: u8 = 7;
pub const FRAME: u8 = 10;

/// Names a place in a program.
pub type Label = &'static str;

/// The last two instructions of a program, which return.
const END: Label = "end";

/// A program in the making. Its jumps lead forward, to a place that is given its name later, or to the end.
#[derive(Default)]
pub struct Assembler {
    program: Vec<u64>,
    jumps: Vec<(usize, Label)>,
    places: Vec<(Label, usize)>,
}

/// `code`, registers, offset and immediate, as the kernel lays them out.
fn encode(code: u8, to: u8, from: u8, offset: i16, value: i32) -> u64 {
    let registers = u64::from(to | from << 4);
    u64::from(code)
        | registers << 8
        | u64::from(offset.cast_unsigned()) << 16
        | u64::from(value.cast_unsigned()) << 32
}

impl Assembler {
    fn add(mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) -> Self {
        self.program.push(encode(code, to, from, offset, value));
        self
    }

    /// `to = from`
    pub fn copy(self, to: u8, from: u8) -> Self {
        self.add(0xbf, to, from, 0, 0)
    }

    /// `to = value`
    pub fn set(self, to: u8, value: i32) -> Self {
        self.add(0xb7, to, 0, 0, value)
    }

    /// `to += value`
    pub fn plus(self, to: u8, value: i32) -> Self {
        self.add(0x07, to, 0, 0, value)
    }

    /// `to = *(u32 *)(from + offset)`
    pub fn load(self, to: u8, from: u8, offset: i16) -> Self {
        self.add(0x61, to, from, offset, 0)
    }

    /// `*(u32 *)(to + offset) = from`
    pub fn store(self, to: u8, offset: i16, from: u8) -> Self {
        self.add(0x63, to, from, offset, 0)
    }

    /// Into network order, or out of it.
    pub fn swap(self, register: u8) -> Self {
        self.add(0xdc, register, 0, 0, 32)
    }

    fn wide(self, to: u8, kind: u8, low: i32, high: i32) -> Self {
        self.add(0x18, to, kind, 0, low).add(0, 0, 0, 0, high)
    }

    /// `to = value`, of 64 bits
    pub fn set_wide(self, to: u8, value: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        self.wide(to, 0, i32::from_le_bytes([a, b, c, d]), i32::from_le_bytes([e, f, g, h]))
    }

    /// `to` = the map of this descriptor
    pub fn set_map(self, to: u8, fd: u32) -> Self {
        self.wide(to, 1, fd.cast_signed(), 0)
    }

    /// Adds 1 to the only element of the array of this descriptor. Uses R1 and R2.
    pub fn count(self, fd: u32) -> Self {
        // A pointer to the element; then an atomic addition.
        self.wide(R1, 2, fd.cast_signed(), 0).set(R2, 1).add(0xdb, R1, R2, 0, 0)
    }

    /// Calls a helper of the kernel.
    pub fn call(self, helper: i32) -> Self {
        self.add(0x85, 0, 0, 0, helper)
    }

    /// `register &= value`
    pub fn keep(self, register: u8, value: i32) -> Self {
        self.add(0x57, register, 0, 0, value)
    }

    /// `register |= value`
    pub fn with(self, register: u8, value: i32) -> Self {
        self.add(0x47, register, 0, 0, value)
    }

    /// `to = *(u64 *)(from + offset)`
    pub fn load_wide(self, to: u8, from: u8, offset: i16) -> Self {
        self.add(0x79, to, from, offset, 0)
    }

    /// `*(u64 *)(to + offset) = from`
    pub fn store_wide(self, to: u8, offset: i16, from: u8) -> Self {
        self.add(0x7b, to, from, offset, 0)
    }

    /// `*(u32 *)(to + offset) = value`
    pub fn store_value(self, to: u8, offset: i16, value: u32) -> Self {
        self.add(0x62, to, 0, offset, value.cast_signed())
    }

    /// The place of this name is here.
    pub fn at(mut self, label: Label) -> Self {
        self.places.push((label, self.program.len()));
        self
    }

    fn jump(mut self, code: u8, register: u8, other: u8, value: i32, to: Label) -> Self {
        self.jumps.push((self.program.len(), to));
        self.add(code, register, other, 0, value)
    }

    /// Goes there.
    pub fn go(self, to: Label) -> Self {
        self.jump(0x05, 0, 0, 0, to)
    }

    /// Goes there if `register == value`.
    pub fn go_if(self, register: u8, value: i32, to: Label) -> Self {
        self.jump(0x15, register, 0, value, to)
    }

    /// Goes past the next instruction if `register == value`.
    pub fn skip_one_if(self, register: u8, value: i32) -> Self {
        self.add(0x15, register, 0, 1, value)
    }

    /// Goes to the end.
    pub fn end(self) -> Self {
        self.go(END)
    }

    /// Goes to the end if `register == value`.
    pub fn end_if(self, register: u8, value: i32) -> Self {
        self.go_if(register, value, END)
    }

    /// Goes to the end unless `register == value`.
    pub fn end_unless(self, register: u8, value: i32) -> Self {
        self.jump(0x55, register, 0, value, END)
    }

    /// Goes to the end unless `register == other`.
    pub fn end_unless_same(self, register: u8, other: u8) -> Self {
        self.jump(0x5d, register, other, 0, END)
    }

    /// Goes to the end unless `register & value`.
    pub fn end_unless_any(self, register: u8, value: i32) -> Self {
        // Past the jump, if so.
        self.add(0x45, register, 0, 1, value).end()
    }

    /// The end: returns `value`. A jump that leads nowhere or back is made one that leaves the program, which the kernel
    /// refuses to load.
    pub fn finish(self, value: i32) -> Vec<u64> {
        let mut whole = self.at(END).set(R0, value).add(0x95, 0, 0, 0, 0);
        for (at, label) in &whole.jumps {
            let place = whole.places.iter().find(|(name, _)| name == label).map(|(_, at)| *at);
            let distance = place.and_then(|place| u16::try_from(place.checked_sub(at + 1)?).ok());
            whole.program[*at] |= u64::from(distance.unwrap_or(FAR_OUT)) << 16;
        }
        whole.program
    }
}

/// A distance beyond the end of any of these programs.
const FAR_OUT: u16 = 0x7fff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_to_nowhere_leaves_the_program() {
        let program = Assembler::default().jump(0x55, R6, 0, 5, "nowhere").finish(1);
        assert_eq!(program[0] >> 16 & 0xffff, u64::from(FAR_OUT));
    }

    #[test]
    fn as_the_kernel_lays_them_out() {
        // mov r6, r1; jne r6, 5, +1; mov r2, -1; mov r0, 1; exit
        let program = Assembler::default().copy(R6, R1).end_unless(R6, 5).set(R2, -1).finish(1);
        assert_eq!(
            program,
            [
                0x0000_0000_0000_16bf,
                0x0000_0005_0001_0655,
                0xffff_ffff_0000_02b7,
                0x0000_0001_0000_00b7,
                0x0000_0000_0000_0095
            ]
        );
        assert_eq!(Assembler::default().load(R2, R6, -4).program, [0x0000_0000_fffc_6261]);
        let wide = Assembler::default().set_wide(R1, 0x1122_3344_5566_7788).program;
        assert_eq!(wide, [0x5566_7788_0000_0118, 0x1122_3344_0000_0000]);
    }
}
