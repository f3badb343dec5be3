//! Finds MLX, checks its version, and compiles the shim. Does nothing without the feature `link`.

#[cfg(not(feature = "link"))]
fn main() {}

#[cfg(feature = "link")]
fn main() {
    if let Err(text) = link::run() {
        println!("cargo::error={}", text.replace('\n', " "));
    }
}

#[cfg(feature = "link")]
mod link {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// The first version that works, and the first after it that is not known to: MLX promises nothing between minor versions.
    const SUPPORTED: [[u32; 3]; 2] = [[0, 32, 0], [0, 33, 0]];
    const FILES: [&str; 6] = ["values", "elements", "reduce", "matrix", "index", "foreign"];

    pub(super) fn run() -> Result<(), String> {
        println!("cargo::rerun-if-env-changed=MLX_DIR");
        println!("cargo::rerun-if-changed=src/bridge.rs");
        println!("cargo::rerun-if-changed=src/shim");
        let (include, library) = find()?;
        let version = version(&include)?;
        let [first, after] = SUPPORTED;
        if version < first || version >= after {
            let text = |version: [u32; 3]| version.map(|part| part.to_string()).join(".");
            let (first, after, found) = (text(first), text(after), text(version));
            return Err(format!(
                "MLX {found} is in {}; this crate needs {first} or later, before {after}",
                include.display()
            ));
        }
        let mut build = cxx_build::bridge("src/bridge.rs");
        build.files(FILES.map(|name| format!("src/shim/{name}.cc"))).include(include).std("c++20").warnings(false);
        build.try_compile("ptero_mlx_shim").map_err(|error| format!("the shim does not compile: {error}"))?;
        println!("cargo::rustc-link-search=native={}", library.display());
        println!("cargo::rustc-link-lib=dylib=mlx");
        // Cargo passes link arguments to this package's own tests only; others read this as `DEP_MLX_LIBRARY`.
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", library.display());
        println!("cargo::metadata=LIBRARY={}", library.display());
        println!("cargo::rustc-env=PTERO_MLX_LIBRARY={}", library.display());
        Ok(())
    }

    /// The folders of headers and of the library.
    fn find() -> Result<(PathBuf, PathBuf), String> {
        let mut looked = Vec::new();
        for (name, folder) in places() {
            let Some(folder) = folder else {
                looked.push(format!("{name}: none"));
                continue;
            };
            let (include, library) = (folder.join("include"), folder.join("lib"));
            let has_library = ["libmlx.so", "libmlx.dylib"].iter().any(|file| library.join(file).exists());
            if include.join("mlx/version.h").exists() && has_library {
                return Ok((include, library));
            }
            looked.push(format!("{name}: {} has no include/mlx/version.h and lib/libmlx", folder.display()));
        }
        let advice = "install it with `pip install mlx` (macOS) or `pip install \"mlx[cpu]\"` (Linux), or set MLX_DIR to \
                      the folder that has include/ and lib/";
        Err(format!("MLX was not found. Looked in {}. To get it, {advice}.", looked.join("; ")))
    }

    fn places() -> Vec<(&'static str, Option<PathBuf>)> {
        if let Some(folder) = std::env::var_os("MLX_DIR") {
            // Whoever names a folder means that one.
            return vec![("MLX_DIR", Some(folder.into()))];
        }
        let homebrew = |prefix: &str| Some(PathBuf::from(prefix)).filter(|path| path.exists());
        vec![
            ("the package `mlx` of python3", python()),
            ("Homebrew", homebrew("/opt/homebrew/opt/mlx")),
            ("Homebrew", homebrew("/usr/local/opt/mlx")),
            ("/usr/local", homebrew("/usr/local/include/mlx").map(|_| PathBuf::from("/usr/local"))),
        ]
    }

    /// Where Python finds the package, without importing it.
    fn python() -> Option<PathBuf> {
        let ask = "import importlib.util as u; print(list(u.find_spec('mlx').submodule_search_locations)[0])";
        let output = Command::new("python3").args(["-c", ask]).output().ok()?;
        let path = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !path.trim().is_empty()).then(|| PathBuf::from(path.trim()))
    }

    fn version(include: &Path) -> Result<[u32; 3], String> {
        let path = include.join("mlx/version.h");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let part = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("#define MLX_VERSION_{name} ")));
            line.and_then(|line| line.trim().parse().ok()).ok_or(format!("{} names no version", path.display()))
        };
        Ok([part("MAJOR")?, part("MINOR")?, part("PATCH")?])
    }
}
