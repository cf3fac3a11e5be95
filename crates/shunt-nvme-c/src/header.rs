//! The header and this crate say the same: a C program that is built with the header prints what it
//! has understood.

use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use crate::types::{self, Completion, Namespace, Options, Record, Why};

const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/include");

/// What a C program prints that consists of such a body of `main`.
fn says(body: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let (source, binary) = (dir.path().join("says.c"), dir.path().join("says"));
    let text = format!(
        "#include <shunt_nvme.h>\n#include <stdio.h>\nint main(void) {{\n{body}return 0;\n}}\n"
    );
    std::fs::write(&source, text).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", HEADER]);
    let compiled = compile.arg(&source).arg("-o").arg(&binary).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap()
}

#[test]
fn structures_have_the_same_layout() {
    let (mut body, mut expected) = (String::new(), String::new());
    let mut number = |c: &str, rust: usize| {
        writeln!(body, "printf(\"%s %zu\\n\", \"{c}\", (size_t)({c}));").unwrap();
        writeln!(expected, "{c} {rust}").unwrap();
    };
    macro_rules! structure {
        ($c:literal, $rust:ty, $($field:ident)*) => {
            number(concat!("sizeof(struct ", $c, ")"), size_of::<$rust>());
            $(number(
                concat!("offsetof(struct ", $c, ", ", stringify!($field), ")"),
                offset_of!($rust, $field),
            );)*
        };
    }
    structure!("shunt_nvme_options", Options, size subsystem addresses address_count host key
        controller_key flags depth keep_alive_ms connect_timeout_ms command_timeout_ms
        reconnect_delay_ms give_up_ms reserved);
    structure!("shunt_nvme_why", Why, status text);
    structure!("shunt_nvme_namespace", Namespace, nsid block_size blocks max_transfer flags nguid uuid);
    structure!("shunt_nvme_record", Record, kind address subsystem);
    structure!("shunt_nvme_command", types::Command, op flags nsid blocks start data data_count token);
    structure!("shunt_nvme_completion", Completion, token result error status reserved);
    assert_eq!(says(&body), expected);
}

/// Every constant of the header is one of `types`, and the other way round.
#[test]
fn constants_have_the_same_values() {
    let header = std::fs::read_to_string(Path::new(HEADER).join("shunt_nvme.h")).unwrap();
    let names = header.lines().filter_map(|line| line.strip_prefix("#define SHUNT_NVME_"));
    let names = names.filter_map(|line| line.split_once(' ')).map(|(name, _)| name);
    let mut body = String::new();
    for name in names {
        writeln!(body, "printf(\"{name} %u\\n\", SHUNT_NVME_{name});").unwrap();
    }
    let mut expected = String::new();
    macro_rules! constants {
        ($($name:ident)*) => {
            $(writeln!(expected, "{} {}", stringify!($name), types::$name).unwrap();)*
        };
    }
    constants!(NEVER HEADER_DIGEST DATA_DIGEST NO_GRANT READ_ONLY WRITE_CACHE CAN_COMPARE
        CAN_DISCARD CAN_WRITE_ZEROES REFERRAL SUBSYSTEM DISCOVERY READ WRITE FLUSH COMPARE
        WRITE_ZEROES DISCARD VERIFY FUA DEALLOCATE);
    assert_eq!(says(&body), expected);
}

/// Every function takes and returns what the header says: its declaration, and the one that is
/// written in Rust, as words.
#[test]
fn functions_have_the_same_types() {
    let header = std::fs::read_to_string(Path::new(HEADER).join("shunt_nvme.h")).unwrap();
    let source = include_str!("entries.rs");
    let declared = functions(&header, ");", c_types);
    let written = functions(source, "{", rust_types);
    assert_eq!(declared.len(), 20);
    assert_eq!(declared, written);
}

/// Functions by their names, in the order of these.
fn functions(text: &str, end: &str, types: impl Fn(&str) -> String) -> Vec<String> {
    let lines: Vec<_> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let is_rust = line.starts_with("pub ") && line.contains("extern \"C\" fn shunt_nvme_");
        let is_c = ["int shunt_nvme_", "uint64_t shunt_nvme_"].iter().any(|s| line.starts_with(s));
        if is_rust || is_c {
            let rest = lines[at..].join(" ");
            found.push(types(&rest[..rest.find(end).unwrap()]));
        }
    }
    found.sort();
    found
}

/// A type of C by the name that Rust has for it here.
fn c_types(function: &str) -> String {
    let (front, arguments) = function.split_once('(').unwrap();
    let (result, name) = front.split_once(' ').unwrap();
    let arguments = arguments.split(',').map(|argument| {
        let argument = argument.trim();
        let (kind, stars) = match argument.rfind(['*', ' ']) {
            Some(at) => (&argument[..=at], argument.matches('*').count()),
            None => panic!("{argument}"),
        };
        let is_const = kind.starts_with("const ");
        let base = kind.trim_start_matches("const ").trim_start_matches("struct ");
        named(base.trim_end_matches(['*', ' ']), is_const, stars)
    });
    let arguments: Vec<_> = arguments.collect();
    format!("{name}({}) {result}", arguments.join(", "))
}

fn rust_types(function: &str) -> String {
    let (front, rest) = function.split_once('(').unwrap();
    let name = front.rsplit(' ').next().unwrap();
    let (arguments, result) = rest.rsplit_once(") -> ").unwrap();
    let arguments = arguments.split(',').filter_map(|argument| {
        let (name, kind) = argument.trim().split_once(": ")?;
        // What C has as a pointer.
        let kind = kind.replace("Option<&", "*const ").replace("Out<", "*mut ").replace('>', "");
        let stars = kind.matches('*').count();
        let is_const = kind.starts_with("*const ");
        let base = kind.rsplit(' ').next().unwrap();
        let base = match base {
            "Options" => "shunt_nvme_options",
            "Handle" => "shunt_nvme",
            "QueueHandle" => "shunt_nvme_queue",
            "Why" => "shunt_nvme_why",
            "Namespace" => "shunt_nvme_namespace",
            "Record" => "shunt_nvme_record",
            "Command" => "shunt_nvme_command",
            "Completion" => "shunt_nvme_completion",
            "u16" => "uint16_t",
            "u32" => "uint32_t",
            "u64" => "uint64_t",
            "c_int" => "int",
            "c_char" => "char",
            "c_void" => "void",
            "size_t" => "size_t",
            other => panic!("{name}: {other}"),
        };
        // A queue is never read by more than one, and C has no word for that.
        Some(named(base, is_const, stars))
    });
    let arguments: Vec<_> = arguments.collect();
    let result = if result.trim() == "u64" { "uint64_t" } else { "int" };
    format!("{name}({}) {result}", arguments.join(", "))
}

fn named(base: &str, is_const: bool, stars: usize) -> String {
    let is_const = is_const && base != "shunt_nvme_queue";
    format!("{}{base}{}", if is_const { "const " } else { "" }, "*".repeat(stars))
}
