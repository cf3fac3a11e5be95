//! How the library is linked: its name, and that it stays loaded, as its threads run in it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libshunt_nvme.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
