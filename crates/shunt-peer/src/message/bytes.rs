//! Fields, one after another.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::bounds::Malformed;

/// Reads fields.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (field, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(field)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*field)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn bytes16(&mut self) -> Result<[u8; 16], Malformed> {
        self.array()
    }

    pub(super) fn ip(&mut self) -> Result<IpAddr, Malformed> {
        Ok(Ipv6Addr::from(self.bytes16()?).to_canonical())
    }

    pub(super) fn socket(&mut self) -> Result<SocketAddr, Malformed> {
        Ok(SocketAddr::new(self.ip()?, self.u16()?))
    }

    /// A list of at most so many. Nothing is kept room for that is not there.
    pub(super) fn list<T>(
        &mut self,
        most: usize,
        mut one: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let number = usize::from(self.u16()?);
        if number > most {
            return Err(Malformed::Many);
        }
        (0..number).map(|_| one(self)).collect()
    }

    pub(super) const fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Long) }
    }
}

/// Writes fields.
#[derive(Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn u8(&mut self, number: u8) -> &mut Self {
        self.put(&[number])
    }

    pub(super) fn u16(&mut self, number: u16) -> &mut Self {
        self.put(&number.to_be_bytes())
    }

    pub(super) fn u32(&mut self, number: u32) -> &mut Self {
        self.put(&number.to_be_bytes())
    }

    pub(super) fn u64(&mut self, number: u64) -> &mut Self {
        self.put(&number.to_be_bytes())
    }

    pub(super) fn ip(&mut self, ip: IpAddr) {
        let ip = match ip {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        self.put(&ip.octets());
    }

    pub(super) fn socket(&mut self, at: SocketAddr) {
        self.ip(at.ip());
        self.u16(at.port());
    }

    /// A list, cut after so many.
    pub(super) fn list<T>(&mut self, most: usize, all: &[T], mut one: impl FnMut(&mut Self, &T)) {
        let some = &all[..all.len().min(most)];
        self.u16(u16::try_from(some.len()).unwrap_or(u16::MAX));
        some.iter().for_each(|it| one(self, it));
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}
