use super::*;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ptero-output-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_appears_only_when_it_is_complete() {
    let folder = folder("complete");
    let path = folder.join("model.pte");
    fs::write(&path, "old").unwrap();
    let mut out = OutputFile::create(&path, &[]).unwrap();
    out.write_all(b"new").unwrap();
    out.flush().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old");
    out.finish().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(names(&folder), ["model.pte"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_file_that_is_given_up_leaves_nothing_behind() {
    let folder = folder("given-up");
    let path = folder.join("model.pte");
    let error = write_whole(&path, &[], |out| {
        out.write_all(&[0; 100_000])?;
        Err(io::ErrorKind::StorageFull.into())
    });
    let said = format!("{:#}", error.unwrap_err());
    assert_eq!(said, format!("could not write {}: no storage space", path.display()));
    drop(OutputFile::create(&path, &[]).unwrap());
    assert!(names(&folder).is_empty());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_input_is_not_overwritten_under_any_of_its_names() {
    let folder = folder("input");
    let input = folder.join("model.safetensors");
    fs::write(&input, "weights").unwrap();
    fs::create_dir(folder.join("sub")).unwrap();
    for path in [input.clone(), folder.join("sub/../model.safetensors")] {
        let error = OutputFile::create(&path, &[Path::new("elsewhere"), &input]).unwrap_err();
        assert!(format!("{error:#}").ends_with(": it is the input; give another name"), "{error:#}");
    }
    assert_eq!(fs::read(&input).unwrap(), b"weights");
    assert_eq!(names(&folder), ["model.safetensors", "sub"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_is_not_a_regular_file_is_not_replaced() {
    let folder = folder("plain");
    let cases: &[&Path] = if cfg!(unix) { &[&folder, Path::new("/dev/null")] } else { &[&folder] };
    for path in cases {
        let said = format!("{:#}", OutputFile::create(path, &[]).unwrap_err());
        assert_eq!(said, format!("could not write {}: it exists and is not a regular file", path.display()));
    }
    for (path, wanted) in [("missing/x.pte", "the folder"), ("..", "not a regular file"), ("", "not a file name")] {
        let path = if path.is_empty() { PathBuf::new() } else { folder.join(path) };
        let said = format!("{:#}", OutputFile::create(&path, &[]).unwrap_err());
        assert!(said.contains(wanted), "{said}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[cfg(unix)]
#[test]
fn a_link_stays_a_link_and_its_file_is_replaced() {
    let folder = folder("link");
    fs::write(folder.join("file"), "old").unwrap();
    std::os::unix::fs::symlink("file", folder.join("link")).unwrap();
    write_whole(&folder.join("link"), &[], |out| out.write_all(b"new")).unwrap();
    assert!(folder.join("link").symlink_metadata().unwrap().is_symlink());
    assert_eq!(fs::read(folder.join("file")).unwrap(), b"new");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_relative_name_is_one_in_the_current_folder() {
    let name = format!("output-test-{}.txt", std::process::id());
    write_whole(Path::new(&name), &[], |out| out.write_all(b"here")).unwrap();
    assert_eq!(fs::read(&name).unwrap(), b"here");
    fs::remove_file(name).unwrap();
}

#[test]
fn leftovers_of_a_killed_run_are_removed_and_files_being_written_are_not() {
    let folder = folder("leftovers");
    let path = folder.join("model.pte");
    for name in [".model.pte.999999-0.part", ".model.pte.mine.part", ".other.pte.1-0.part"] {
        fs::write(folder.join(name), "left").unwrap();
    }
    let mut first = OutputFile::create(&path, &[]).unwrap();
    let second = OutputFile::create(&path, &[]).unwrap();
    let hidden = names(&folder);
    assert!(!hidden.contains(&".model.pte.999999-0.part".to_owned()), "{hidden:?}");
    assert_eq!(hidden.len(), 4, "two that are not ours and two being written: {hidden:?}");
    first.write_all(b"first").unwrap();
    first.finish().unwrap();
    drop(second);
    assert_eq!(fs::read(&path).unwrap(), b"first");
    assert_eq!(names(&folder), [".model.pte.mine.part", ".other.pte.1-0.part", "model.pte"]);
    fs::remove_dir_all(folder).unwrap();
}
