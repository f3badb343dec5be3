use super::*;

const SOURCE: Source = Source { name: "a.cu", text: "text", headers: &[("b.cuh", "more")], fused_multiply_add: true };
const NVRTC: Version = Version { major: 13, minor: 0 };
const DRIVER: Version = Version { major: 13, minor: 1 };

fn options() -> Vec<String> {
    vec!["--x".to_owned(), "--y".to_owned()]
}

fn key() -> Key {
    Key::new(&SOURCE, "", &options(), NVRTC, DRIVER)
}

/// An empty folder of this test's own.
fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ptero-cuda-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

#[test]
fn every_ingredient_changes_the_key() {
    let sources = [
        Source { name: "b.cu", ..SOURCE },
        Source { text: "text ", ..SOURCE },
        Source { headers: &[], ..SOURCE },
        Source { headers: &[("b.cuh", "less")], ..SOURCE },
        Source { headers: &[("c.cuh", "more")], ..SOURCE },
        Source { headers: &[("b.cuh", "more"), ("b.cuh", "more")], ..SOURCE },
        // The same bytes, cut elsewhere.
        Source { headers: &[("b.cuhm", "ore")], ..SOURCE },
    ];
    let mut keys: Vec<_> = sources.iter().map(|source| Key::new(source, "", &options(), NVRTC, DRIVER)).collect();
    let joined = vec!["--x--y".to_owned()];
    keys.extend([&[][..], &options()[..1], &joined].map(|options| Key::new(&SOURCE, "", options, NVRTC, DRIVER)));
    keys.push(Key::new(&SOURCE, "", &options(), DRIVER, NVRTC));
    keys.push(Key::new(&SOURCE, "", &options(), NVRTC, NVRTC));
    keys.push(Key::new(&SOURCE, "more", &options(), NVRTC, DRIVER));
    keys.push(key());
    for (at, key) in keys.iter().enumerate() {
        assert!(!keys[at + 1..].contains(key), "{at}");
    }
    assert_eq!(key(), key());
}

#[test]
fn arch_and_contraction_are_among_the_options() {
    use crate::context::Arch;
    let options = |source: &Source, major| {
        crate::module::options(source, crate::module::Variant::default(), Arch { major, minor: 0 })
    };
    let strict = Source { fused_multiply_add: false, ..SOURCE };
    assert_ne!(options(&SOURCE, 8), options(&SOURCE, 9));
    assert_ne!(options(&SOURCE, 8), options(&strict, 8));
    assert!(options(&strict, 9).contains(&"--fmad=false".to_owned()));
    assert!(options(&strict, 9).contains(&"--gpu-architecture=sm_90a".to_owned()));
}

#[test]
fn what_is_put_is_got_and_leaves_nothing_else() {
    let cache = Cache::at(scratch("round"));
    assert_eq!(cache.get(&key()), None);
    cache.put(&key(), b"cubin");
    cache.put(&key(), b"cubin again");
    assert_eq!(cache.get(&key()).as_deref(), Some(&b"cubin again"[..]));
    let folder = cache.folder.unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn damaged_entries_are_not_got() {
    let cache = Cache::at(scratch("damage"));
    cache.put(&key(), b"cubin");
    let path = cache.path(&key()).unwrap();
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&path, damaged).unwrap();
        assert_eq!(cache.get(&key()), None, "byte {at} changed");
        fs::write(&path, &whole[..at]).unwrap();
        assert_eq!(cache.get(&key()), None, "cut at {at}");
    }
    cache.put(&key(), b"cubin");
    assert!(cache.get(&key()).is_some(), "a damaged entry is replaced");
    fs::remove_dir_all(cache.folder.unwrap()).unwrap();
}

#[test]
fn a_folder_that_cannot_be_is_no_error() {
    let file = scratch("file");
    fs::write(&file, "not a folder").unwrap();
    let cache = Cache::at(file.join("cache"));
    cache.put(&key(), b"cubin");
    assert_eq!(cache.get(&key()), None);
    fs::remove_file(file).unwrap();
    Cache::none().put(&key(), b"cubin");
    assert_eq!(Cache::none().get(&key()), None);
}
