//! Files that the Python packages `safetensors` and `gguf` wrote (`conformance/make_checkpoints.py`).

use ptero_checkpoint::{Checkpoint, Format, Limits, Result, TensorEntry, Value};
use ptero_tensor::DType;
use std::path::{Path, PathBuf};

fn open(name: &str) -> Checkpoint {
    open_path(&golden(name)).expect("sound")
}

fn open_path(path: &Path) -> Result<Checkpoint> {
    Checkpoint::open(path, &Limits::DEFAULT)
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name)
}

fn values(tensor: &TensorEntry) -> Vec<f32> {
    let mut values = vec![0.0; usize::try_from(tensor.elements()).expect("small")];
    tensor.read_rows(0..tensor.rows(), &mut values).expect("floats");
    values
}

#[test]
fn a_folder_of_shards_opens_with_all_its_types() {
    let folder = open("folder");
    let shown: Vec<_> =
        folder.tensors().map(|(name, t)| format!("{name} {} {:?}", t.format().name(), t.shape())).collect();
    let wanted = [
        "bf16 bf16 [2, 3]",
        "bool bool [2, 3]",
        "empty f32 [3, 0]",
        "f16 f16 [2, 3]",
        "f32 f32 [2, 3]",
        "f64 f64 [2, 3]",
        "f8 f8e4m3fn [2, 3]",
        "i32 i32 [2, 3]",
        "i64 i64 [2, 3]",
        "i8 i8 [2, 3]",
        "scalar f32 []",
        "u8 u8 [2, 3]",
    ];
    assert_eq!(shown, wanted);
    for name in ["f32", "f16", "bf16"] {
        assert_eq!(values(folder.tensor(name).unwrap()), [0.0, 0.25, 0.5, 0.75, 1.0, 1.25], "{name}");
    }
    assert_eq!(values(folder.tensor("scalar").unwrap()), [1.5]);
    assert!(values(folder.tensor("empty").unwrap()).is_empty());
    assert_eq!(&**folder.tensor("i8").unwrap().bytes(), [0, 255, 254, 253, 252, 251]);
    let error = folder.tensor("f64").unwrap().read_rows(0..1, &mut [0.0; 3]).unwrap_err();
    assert_eq!(error.to_string(), "elements of type f64 are not read as f32");
    assert_eq!(folder.tensor("lm_head").unwrap_err().to_string(), "tensor `lm_head`: no such tensor");
}

#[test]
fn the_small_files_of_a_folder_are_found_by_name() {
    let folder = open("folder");
    assert_eq!(folder.config().unwrap()["hidden_size"], 3);
    assert_eq!(folder.json("generation_config.json", &Limits::DEFAULT).unwrap().unwrap()["temperature"], 0.6);
    assert!(folder.file("tokenizer_config.json").unwrap().unwrap().starts_with(b"{"));
    assert!(folder.file("tokenizer.json").unwrap().is_none());
    assert_eq!(folder.chat_template(&Limits::DEFAULT).unwrap().unwrap(), "{{ messages }}");
    assert_eq!(folder.metadata()["format"], Value::String("pt".to_owned()));
    let limits = Limits { json_bytes: 4, ..Limits::DEFAULT };
    let error = folder.json("generation_config.json", &limits).unwrap_err().to_string();
    assert_eq!(error, "generation_config.json: 20 bytes of JSON, over the limit of 4");
}

#[test]
fn one_shard_is_a_checkpoint_too_and_anything_else_is_not() {
    assert_eq!(open("folder/model-00001-of-00002.safetensors").tensors().len(), 5);
    let error = open_path(&golden("folder/config.json")).unwrap_err().to_string();
    assert!(
        error.ends_with("config.json: neither a safetensors nor a GGUF file, nor a folder that holds a checkpoint")
    );
    let error = open_path(&golden("")).unwrap_err().to_string();
    assert!(error.ends_with("holds neither `model.safetensors` nor `model.safetensors.index.json`"), "{error}");
    assert!(open_path(&golden("absent")).is_err());
}

#[test]
fn every_type_of_gguf_reads_as_the_python_package_reads_it() {
    let (file, expected) = (open("tiny.gguf"), open("expected.safetensors"));
    assert_eq!(file.tensors().len(), 11);
    for (name, tensor) in file.tensors() {
        let wanted = expected.tensor(name).unwrap();
        assert_eq!(tensor.shape(), wanted.shape(), "{name}");
        assert_eq!(wanted.format(), Format::Plain(DType::F32));
        assert!(name.contains(tensor.format().name()), "{name}");
        assert_eq!(values(tensor), values(wanted), "{name}");
    }
}

#[test]
fn every_type_of_metadata_is_read() {
    let file = open("tiny.gguf");
    let metadata = file.metadata();
    assert_eq!(metadata["general.architecture"].as_str(), Some("tiny"));
    let numbers = ["t.u8", "t.u16", "t.u32", "t.u64"].map(|key| metadata[key].as_u64().unwrap());
    assert_eq!(numbers, [200, 60_000, 4_000_000_000, 1 << 60]);
    assert_eq!(metadata["t.i8"], Value::I8(-100));
    assert_eq!(metadata["t.i16"], Value::I16(-30_000));
    assert_eq!(metadata["t.i32"], Value::I32(-2_000_000_000));
    assert_eq!(metadata["t.i64"], Value::I64(-(1 << 60)));
    assert_eq!(["t.f32", "t.f64"].map(|key| metadata[key].as_f64().unwrap()), [0.25, 0.1]);
    assert_eq!(metadata["t.bool"].as_bool(), Some(true));
    assert_eq!(metadata["t.string"].as_str(), Some("äöü"));
    assert_eq!(file.chat_template(&Limits::DEFAULT).unwrap().unwrap(), "{{ messages }}");
    let items = |key: &str| metadata[key].as_array().unwrap().iter().collect::<Vec<_>>();
    assert_eq!(items("t.bools"), [Value::Bool(true), Value::Bool(false)]);
    assert_eq!(items("tokenizer.ggml.tokens"), ["<s>", "a", "Ġb"].map(|text| Value::String(text.to_owned())));
    let nested = items("t.nested");
    let inner: Vec<Vec<_>> = nested.iter().map(|value| value.as_array().unwrap().iter().collect()).collect();
    assert_eq!(inner, [vec![Value::I32(1), Value::I32(2)], vec![Value::I32(3)]]);
}

#[test]
fn rows_are_read_in_runs() {
    let file = open("tiny.gguf");
    let tensor = file.tensor("blk.0.q5_1.weight").unwrap();
    assert_eq!((tensor.rows(), tensor.columns()), (3, 32));
    let whole = values(tensor);
    for most in [1, 2, 3] {
        let mut read = Vec::new();
        for start in (0..3_u64).step_by(most) {
            let run = start..(start + most as u64).min(3);
            let mut rows = vec![0.0; usize::try_from((run.end - run.start) * tensor.columns()).unwrap()];
            tensor.read_rows(run, &mut rows).unwrap();
            read.extend(rows);
        }
        assert_eq!(read, whole, "{most}");
    }
    let error = |rows, room: usize| tensor.read_rows(rows, &mut vec![0.0; room]).unwrap_err().to_string();
    assert_eq!(error(2..4, 64), "rows 2 to 4 of a tensor of 3");
    #[allow(clippy::reversed_empty_ranges, reason = "what a caller may get wrong")]
    let backwards = 2..1;
    assert_eq!(error(backwards, 0), "rows 2 to 1 of a tensor of 3");
    assert_eq!(error(0..1, 31), "room for 31 elements where the rows hold 32");
}

#[test]
fn all_differences_are_told_at_once() {
    let folder = open("folder");
    let six: &[u64] = &[2, 3];
    let names = ["bf16", "bool", "empty", "f16", "f32", "f64", "f8", "i32", "i64", "i8"];
    let mut wanted: Vec<(&str, &[u64])> = names.map(|name| (name, six)).to_vec();
    wanted.extend([("lm_head.weight", [5_u64, 3].as_slice()), ("norm.weight", &[3])]);
    let differences = folder.compare(wanted);
    let text = differences.clone().require_none().unwrap_err().to_string();
    let told = "the tensors are not those that the model wants\n\
        2 missing:\n  `lm_head.weight` of shape [5, 3]\n  `norm.weight` of shape [3]\n\
        1 of another shape:\n  `empty` is [3, 0], wanted [2, 3]\n\
        2 not wanted:\n  `scalar` of shape []\n  `u8` of shape [2, 3]";
    assert_eq!(text, told);
    let all: Vec<_> = folder.tensors().map(|(name, tensor)| (name, tensor.shape())).collect();
    assert!(folder.compare(all).require_none().is_ok());
}
