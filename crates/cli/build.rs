//! Lets the command find the MLX that it was built with, wherever that is.

fn main() {
    println!("cargo::rerun-if-env-changed=DEP_MLX_LIBRARY");
    if let Some(folder) = std::env::var_os("DEP_MLX_LIBRARY") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", folder.display());
    }
}
