//! Builds the crate again when the built files change: new file names are not seen otherwise.

fn main() {
    println!("cargo::rerun-if-changed=dist");
}
