use super::*;
use ptero_pte::{Program, Verified};
use std::time::Duration;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ptero-programs-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../export/tests/tiny").join(name)
}

/// A copy of the tiny llama, which tests may change.
fn checkpoint(folder: &Path) -> PathBuf {
    let copy = folder.join("Tiny Llama");
    fs::create_dir_all(&copy).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(tiny("llama").join(name), copy.join(name)).unwrap();
    }
    copy
}

fn cache(folder: &Path) -> Cache {
    Cache { folder: folder.join("cache/programs"), limit: Limit::DEFAULT }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.filter(|name| name != ".lock").collect();
    names.sort();
    names
}

fn open(program: &Path) -> Verified {
    Verified::new(Program::open(program, &ptero_pte::Limits::DEFAULT).unwrap(), &ptero_pte::Limits::DEFAULT).unwrap()
}

/// Sets when a file was written and last used.
fn set_age(path: &Path, seconds: u64) {
    let then = SystemTime::now() - Duration::from_secs(seconds);
    let times = FileTimes::new().set_accessed(then).set_modified(then);
    File::options().write(true).open(path).unwrap().set_times(times).unwrap();
}

#[test]
fn a_checkpoint_is_exported_once() {
    let folder = folder("once");
    let (cache, checkpoint) = (cache(&folder), checkpoint(&folder));
    let recipe = default_recipe(&checkpoint);
    let program = cache.program_of(Origin::Checkpoint(&checkpoint), &recipe, &Progress::default()).unwrap();
    assert_eq!(open(&program).bool_metadata("use_sampling").unwrap(), Some(true));
    let name = program.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("Tiny-Llama-") && name.ends_with(".pte"), "{name}");
    set_age(&program, 1000);
    let written = fs::metadata(&program).unwrap().modified().unwrap();
    assert_eq!(
        cache
            .program_of(Origin::Checkpoint(&folder.join("./Tiny Llama/../Tiny Llama")), &recipe, &Progress::default())
            .unwrap(),
        program
    );
    let metadata = fs::metadata(&program).unwrap();
    assert_eq!(metadata.modified().unwrap(), written, "it is the same file");
    assert!(metadata.accessed().unwrap().elapsed().unwrap() < Duration::from_secs(500), "and it was used");
    assert_eq!(names(&cache.folder), [name]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn another_recipe_and_a_changed_file_are_exported_anew() {
    let folder = folder("anew");
    let (cache, checkpoint) = (cache(&folder), checkpoint(&folder));
    let recipe = default_recipe(&checkpoint);
    let int4 = Recipe { linear: Storage::Int4, ..recipe.clone() };
    let short = Recipe { max_context: Some(32), ..recipe.clone() };
    let mut programs: Vec<PathBuf> = [&recipe, &int4, &short]
        .map(|recipe| cache.program_of(Origin::Checkpoint(&checkpoint), recipe, &Progress::default()).unwrap())
        .to_vec();
    assert_eq!(open(programs.last().unwrap()).int_metadata("get_max_context_len").unwrap(), Some(32));
    set_age(&checkpoint.join("model.safetensors"), 5);
    programs.push(cache.program_of(Origin::Checkpoint(&checkpoint), &recipe, &Progress::default()).unwrap());
    fs::write(checkpoint.join("generation_config.json"), "{}").unwrap();
    programs.push(cache.program_of(Origin::Checkpoint(&checkpoint), &recipe, &Progress::default()).unwrap());
    let other = folder.join("elsewhere");
    fs::rename(&checkpoint, &other).unwrap();
    programs.push(cache.program_of(Origin::Checkpoint(&other), &recipe, &Progress::default()).unwrap());
    programs.sort();
    programs.dedup();
    assert_eq!(programs.len(), 6);
    fs::write(other.join("notes.txt"), "no part of the checkpoint").unwrap();
    fs::write(other.join("other.pte"), "nor this").unwrap();
    assert!(programs.contains(&cache.program_of(Origin::Checkpoint(&other), &recipe, &Progress::default()).unwrap()));
    assert_eq!(names(&cache.folder).len(), 6);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_name_of_a_program_follows_the_recipe_that_was_used() {
    let folder = folder("groups");
    let cache = cache(&folder);
    let config = tiny("llama").join("config.json");
    let program = |config: &Path, recipe: &Recipe| {
        cache.program_of(Origin::Config(config, None), recipe, &Progress::default()).unwrap()
    };
    let given = |group| Recipe { group: Some(group), ..random_recipe() };
    let chosen = program(&config, &random_recipe());
    assert_eq!(program(&config, &given(32)), chosen, "a small model has groups of 32, and the same program");
    assert_ne!(program(&config, &given(64)), chosen);
    let mixed = Recipe { sensitive: Some(Storage::Int8), ..random_recipe() };
    assert_ne!(program(&config, &mixed), chosen);
    // A large model has groups of 64. Only names are compared, since writing it takes long.
    let large = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/configs/Llama-3.2-1B.json");
    for layers in [None, Some(1)] {
        let origin = Origin::Config(&large, layers);
        let resolved = origin.resolve(&random_recipe()).unwrap();
        assert_eq!(resolved, given(64));
        assert_eq!(origin.resolve(&given(32)).unwrap(), given(32));
        assert_ne!(file_name(origin, &resolved).unwrap(), file_name(origin, &given(32)).unwrap());
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_a_killed_export_left_is_no_program_and_is_removed() {
    let folder = folder("killed");
    let (cache, checkpoint) = (cache(&folder), checkpoint(&folder));
    let recipe = default_recipe(&checkpoint);
    fs::create_dir_all(&cache.folder).unwrap();
    let origin = Origin::Checkpoint(&checkpoint);
    let name = file_name(origin, &origin.resolve(&recipe).unwrap()).unwrap();
    let left = [format!(".{name}.4194999-0.part"), ".other-0123456789abcdef.pte.4194999-3.part".to_owned()];
    for left in &left {
        fs::write(cache.folder.join(left), "the first half of a pro").unwrap();
    }
    fs::write(cache.folder.join(".notes.part"), "not ours").unwrap();
    open(&cache.program_of(Origin::Checkpoint(&checkpoint), &recipe, &Progress::default()).unwrap());
    assert_eq!(names(&cache.folder), [".notes.part".to_owned(), name]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn programs_that_were_not_used_for_longest_make_room() {
    let folder = folder("room");
    let (cache, checkpoint) = (cache(&folder), checkpoint(&folder));
    let recipe = |context| Recipe { max_context: Some(context), ..default_recipe(&checkpoint) };
    let make = |cache: &Cache, context| {
        cache.program_of(Origin::Checkpoint(&checkpoint), &recipe(context), &Progress::default()).unwrap()
    };
    let programs = [20, 21, 22].map(|context| make(&cache, context));
    let bytes: u64 = programs.iter().map(|program| fs::metadata(program).unwrap().len()).sum();
    for (program, age) in programs.iter().zip([3000, 1000, 2000]) {
        set_age(program, age);
    }
    fs::write(cache.folder.join("mine.pte"), vec![0; 1 << 20]).unwrap();
    set_age(&cache.folder.join("mine.pte"), 9000);
    // The first is used again, so that the third is the oldest.
    assert_eq!(make(&cache, 20), programs[0]);
    let full = Cache { folder: cache.folder.clone(), limit: Limit(bytes + 1000) };
    let newest = make(&full, 23);
    let is_there = |program: &PathBuf| program.exists();
    assert_eq!(programs.each_ref().map(is_there), [true, true, false]);
    assert!(newest.exists());
    // What was just handed out may be about to be opened.
    let none = Cache { folder: cache.folder.clone(), limit: Limit(0) };
    let last = make(&none, 24);
    assert_eq!(programs.each_ref().map(is_there), [true, false, false]);
    assert!(newest.exists() && last.exists(), "never the one that was asked for");
    assert!(cache.folder.join("mine.pte").exists(), "what is not the cache's own stays");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn exports_at_the_same_time_all_give_a_good_program() {
    let folder = folder("together");
    let (cache, checkpoint) = (cache(&folder), checkpoint(&folder));
    let recipe = default_recipe(&checkpoint);
    let make = || {
        let program = cache.program_of(Origin::Checkpoint(&checkpoint), &recipe, &Progress::default()).unwrap();
        open(&program);
        program
    };
    let programs = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(programs.iter().all(|program| *program == programs[0]));
    assert_eq!(names(&cache.folder).len(), 1);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_cannot_be_exported_is_refused_and_leaves_no_cache() {
    let folder = folder("refused");
    let cache = cache(&folder);
    let refusal = |path: &Path| {
        let error =
            cache.program_of(Origin::Checkpoint(path), &default_recipe(path), &Progress::default()).unwrap_err();
        format!("{error:#}").replace(folder.to_str().unwrap(), "FOLDER")
    };
    let (empty, text, bare) = (folder.join("empty"), folder.join("text.txt"), folder.join("bare"));
    fs::create_dir(&empty).unwrap();
    fs::create_dir(&bare).unwrap();
    fs::write(&text, "hello").unwrap();
    fs::copy(tiny("llama").join("model.safetensors"), bare.join("model.safetensors")).unwrap();
    let no_config = "the checkpoint does not say what model it holds\nhint: `config.json` belongs beside the weights";
    for (path, wanted) in [
        (&empty, "FOLDER/empty: holds neither `model.safetensors` nor `model.safetensors.index.json`".to_owned()),
        (
            &text,
            "FOLDER/text.txt: neither a safetensors nor a GGUF file, nor a folder that holds a checkpoint".to_owned(),
        ),
        (&bare, format!("FOLDER/bare: {no_config}")),
    ] {
        let said = refusal(path);
        assert!(said.starts_with(&wanted), "{said}");
    }
    let error = crate::Program::open("no/such/model/anywhere").unwrap_err().to_string();
    assert!(error.starts_with("`no/such/model/anywhere` is no file and no folder here, and not the name"), "{error}");
    assert!(!cache.folder.exists());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn blocks_of_gguf_are_kept_and_other_weights_have_eight_bits() {
    let folder = folder("recipe");
    let gguf = tiny("llama_gguf").join("model.gguf");
    let odd = folder.join("model.bin");
    fs::copy(&gguf, &odd).unwrap();
    for (path, storage) in [
        (gguf, Storage::AsInCheckpoint),
        (odd, Storage::AsInCheckpoint),
        (tiny("llama"), Storage::Int8),
        (folder.join("none"), Storage::Int8),
    ] {
        let recipe = default_recipe(&path);
        assert_eq!((recipe.linear, recipe.embedding), (storage, storage), "{}", path.display());
        assert!(recipe.sample.is_some() && recipe.embed_files);
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_cache_is_where_the_variables_say() {
    let from = |set: &[(&str, &str)]| {
        let get = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        Cache::from_variables(get)
    };
    let home = std::env::home_dir().unwrap();
    let xdg = ("XDG_CACHE_HOME", "/caches");
    for (set, wanted) in [
        (&[("PTERO_CACHE", "/mine"), xdg][..], PathBuf::from("/mine/programs")),
        (&[("PTERO_CACHE", " ~/mine "), xdg], home.join("mine/programs")),
        (&[("PTERO_CACHE", ""), xdg], PathBuf::from("/caches/ptero/programs")),
    ] {
        let cache = from(set).unwrap();
        assert_eq!((cache.folder, cache.limit), (wanted, Limit::DEFAULT));
    }
    if cfg!(target_os = "linux") {
        assert_eq!(from(&[]).unwrap().folder, home.join(".cache/ptero/programs"));
    }
    assert_eq!(from(&[xdg, ("PTERO_CACHE_LIMIT", "2GB")]).unwrap().limit, Limit(2_000_000_000));
    let error = from(&[xdg, ("PTERO_CACHE_LIMIT", "much")]).unwrap_err().to_string();
    assert!(error.starts_with("`PTERO_CACHE_LIMIT` is `much`; a number of bytes is wanted"), "{error}");
}

#[test]
fn programs_have_the_names_of_their_checkpoints() {
    for (path, wanted) in [
        ("/models/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"),
        ("/models/a b:c", "a-b-c"),
        ("/models/.hidden", "hidden"),
        ("/", "checkpoint"),
    ] {
        assert_eq!(readable_name(Path::new(path)), wanted);
    }
    let folder = folder("names");
    let snapshot = folder.join("models--owner--Some-Model/snapshots/0123456789012345678901234567890123456789");
    fs::create_dir_all(&snapshot).unwrap();
    assert_eq!(readable_name(&snapshot), "Some-Model");
    assert_eq!(readable_name(&snapshot.join("file.gguf")), "file.gguf");
    fs::remove_dir_all(folder).unwrap();
}
