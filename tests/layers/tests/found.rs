//! What is an import, and what is none, in crates made for it.

use std::fs;
use std::path::Path;

/// The circles of a crate of these files, each as its lines.
fn circles(files: &[(&str, &str)]) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let file = place.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let found = shunt_layers::circles(&place.path().join("lib.rs")).unwrap();
    found.iter().map(ToString::to_string).collect()
}

/// The circles of two files, of which `b` imports `a`.
fn between(a: &str) -> Vec<String> {
    let b = "pub struct B; pub fn f() {} pub const C: u32 = 0; use crate::a::A;";
    circles(&[("lib.rs", "mod a; mod b;"), ("a.rs", &format!("pub struct A; {a}")), ("b.rs", b)])
}

#[test]
fn whatever_names_something_of_a_file_imports_it() {
    for a in [
        "use crate::b::B;",
        "use super::b::B as Other;",
        "use self::super::b::B;",
        "use crate::{b::{self, B}};",
        "use crate::b::*;",
        "use crate::b::C as _;",
        "use super::b; fn g() { b::f(); }",
        "use super::b as other; fn g(_: other::B) {}",
        "fn g() -> Vec<crate::b::B> { Vec::new() }",
        "fn g() { let _ = super::b::C + 1; }",
        "fn g() { use crate::b::f; f(); }",
        "impl A { fn g(&self) -> [u8; crate::b::C as usize] { [] } }",
        "fn g() { println!(\"{}\", crate::b::C); }",
        "fn g() { assert!([1].iter().all(|x| *x == super::b::C)); }",
        "#[derive(Thing)] #[thing(with = crate::b::f)] struct D;",
        "macro_rules! m { () => { $crate::b::f() }; }",
        "mod inner { fn g() { super::super::b::f(); } }",
        "pub use crate::b::B;",
        "use super::b; fn b() { b::f(); }",
        "#[cfg(not(test))] use crate::b::B;",
        "#[cfg(any(test, loom))] use crate::b::B;",
        "#[cfg(any(test, feature = \"points\"))] use crate::b::B;",
    ] {
        assert_eq!(between(a).len(), 1, "{a}");
    }
}

#[test]
fn nothing_else_does() {
    for a in [
        "",
        "use b::B;",
        "use ::b::B;",
        "fn g() { ::b::f(); println!(\"{}\", ::b::C); }",
        "use super::b;",
        "fn g(b: A) { b.f(); println!(\"{}\", b.f()); }",
        "#[cfg(test)] use crate::b::B;",
        "#[cfg(all(test, unix))] use crate::b::B;",
        "#[cfg(all(any(test, feature = \"sim\"), not(loom)))] use crate::b::B;",
        "#[cfg(test)] mod tests { use crate::b::B; }",
        "#[test] fn g() { crate::b::f(); }",
        "#[cfg(test)] impl A { fn g() { crate::b::f(); } }",
        "impl A { #[cfg(test)] fn g() { crate::b::f(); } }",
        "/// See [`crate::b::B`].\npub struct D;",
        "pub(in crate::b) struct D;",
    ] {
        assert_eq!(between(a), Vec::<String>::new(), "{a}");
    }
}

#[test]
fn a_circle_is_named_by_its_imports() {
    let found = circles(&[
        ("lib.rs", "mod a; mod b; mod c; mod apart;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use crate::c::{C, D}; pub struct B;"),
        ("c/mod.rs", "mod inner; pub use inner::D; pub struct C;"),
        ("c/inner.rs", "pub struct D(crate::a::A);"),
        ("apart.rs", "use crate::a::A;"),
    ]);
    assert_eq!(found, ["a.rs -> b.rs: B\nb.rs -> c/inner.rs: D\nc/inner.rs -> a.rs: A\n"]);
}

#[test]
fn names_are_followed_to_where_they_are_defined() {
    // `face` hands on what stands below, so those who use it import that and not each other.
    let face = "mod low; mod high; pub use low::Low; pub use high::*;";
    let files = [
        ("lib.rs", "mod face; mod user;"),
        ("face/mod.rs", face),
        ("face/low.rs", "pub struct Low;"),
        ("face/high.rs", "use crate::user::User; pub struct High(User);"),
        ("user.rs", "use crate::face::Low; pub struct User(Low);"),
    ];
    assert_eq!(circles(&files), Vec::<String>::new());
    let mut files = files;
    files[4].1 = "use crate::face::High; pub struct User(Box<High>);";
    assert_eq!(circles(&files), ["face/high.rs -> user.rs: User\nuser.rs -> face/high.rs: High\n"]);
}

#[test]
fn parents_and_children_are_files_like_others() {
    let child = ("a/b.rs", "pub struct B(super::A);");
    let parent = |text| circles(&[("lib.rs", "mod a;"), ("a.rs", text), child]);
    assert_eq!(parent("pub struct A; mod b; pub use b::B;"), Vec::<String>::new());
    let found = parent("pub struct A; mod b; pub use b::B; fn f(_: B) {}");
    assert_eq!(found, ["a/b.rs -> a.rs: A\na.rs -> a/b.rs: B\n"]);
    let invokes = ("a/b.rs", "pub struct B; fn f() { m!(); }");
    let parent = "macro_rules! m { () => {}; } mod b; fn f(_: b::B) {}";
    let found = circles(&[("lib.rs", "mod a;"), ("a.rs", parent), invokes]);
    assert_eq!(found, ["a/b.rs -> a.rs: m\na.rs -> a/b.rs: B\n"]);
    // Those that stand within a file are that file.
    let within = [("lib.rs", "mod a { pub struct A(super::b::B); } mod b { use super::a::A; }")];
    assert_eq!(circles(&within), Vec::<String>::new());
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().join("lib.rs");
    let why = |text: &str| {
        fs::write(&root, text).unwrap();
        shunt_layers::circles(&root).unwrap_err().to_string()
    };
    assert!(why("mod away;").contains("away"));
    assert!(why("fn {").contains("lib.rs"));
    assert!(shunt_layers::circles(Path::new("/nowhere/lib.rs")).is_err());
}
