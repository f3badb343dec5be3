//! Files made to do harm: each is refused, and the refusal says where and with which numbers.

mod common;

use common::{array, gguf, read_gguf, read_safetensors, refusal, safetensors, text};
use ptero_checkpoint::{Bytes, Checkpoint, Kind, Limits};

fn table(table: &str, data: usize) -> String {
    refusal(read_safetensors(safetensors(table, data)))
}

fn row(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

#[test]
fn forged_header_sizes_are_refused() {
    for (length, wanted) in [
        (u64::MAX, "header: 18446744073709551615 bytes of header, over the limit of 100000000"),
        (1 << 60, "header: 1152921504606846976 bytes of header, over the limit of 100000000"),
        (9999, "header: 9999 bytes at offset 8 reach outside the 10 bytes there are"),
        (3, "header: 3 bytes at offset 8 reach outside the 10 bytes there are"),
    ] {
        let bytes = [&u64::to_le_bytes(length)[..], b"{}"].concat();
        assert_eq!(refusal(read_safetensors(bytes)), wanted);
    }
    assert!(refusal(read_safetensors(vec![1, 2])).contains("reach outside the 2 bytes"));
    assert_eq!(read_safetensors(safetensors("{}", 0)).unwrap().tensors().len(), 0);
}

#[test]
fn shapes_and_ranges_that_do_not_fit_are_refused() {
    let refused = |dtype: &str, shape: &str, offsets: &str| table(&format!("{{{}}}", row(dtype, shape, offsets)), 8);
    for (dtype, shape, offsets, wanted) in [
        ("F32", "[2]", "[0,12]", "tensor `t`: 12 bytes at offset 0 reach outside the 8 bytes there are"),
        ("F32", "[3]", "[0,8]", "tensor `t`: 8 bytes of data where f32 of shape [3] takes 12"),
        ("F32", "[2]", "[8,0]", "tensor `t`: data ends at 0, before it starts at 8"),
        (
            "U8",
            "[4294967296,4294967296]",
            "[0,8]",
            "tensor `t`: the bytes of shape [4294967296, 4294967296] do not fit 64 bits",
        ),
        (
            "F32",
            "[4611686018427387904]",
            "[0,0]",
            "tensor `t`: the bytes of shape [4611686018427387904] do not fit 64 bits",
        ),
        ("F4", "[2]", "[0,8]", "tensor `t`: element type `F4` is not one that ptero reads"),
        ("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,8]", "[0,8]", "tensor `t`: 17 sizes of a shape, over the limit of 16"),
        ("U8", "[4]", "[0,4]", "bytes 4 to 8 of the data belong to no tensor"),
    ] {
        assert_eq!(refused(dtype, shape, offsets), wanted);
    }
    let wanted = "tensor `t`: 0 bytes at offset 18446744073709551615 reach outside the 8 bytes there are";
    assert_eq!(refused("U8", "[0]", "[18446744073709551615,18446744073709551615]"), wanted);
    for wrong in [("F32", "[-1]", "[0,8]"), ("F32", "[1.5]", "[0,8]"), ("F32", "[2]", "[0]"), ("F32", "2", "[0,8]")] {
        let error = refused(wrong.0, wrong.1, wrong.2);
        assert!(error.starts_with("header: `t`: "), "{error}");
    }
}

#[test]
fn tensors_that_share_bytes_or_a_name_are_refused() {
    let two = |name: &str, offsets: &str| {
        let first = row("U8", "[4]", "[0,4]");
        format!(r#"{{{first},"{name}":{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}}}"#)
    };
    assert_eq!(table(&two("t", "[4,8]"), 8), "duplicate `t`");
    let overlap = "tensor `u`: data at 3 to 7 overlaps that of tensor `t`, which ends at 4";
    assert_eq!(table(&two("u", "[3,7]"), 7), overlap);
    assert_eq!(table(&two("u", "[5,9]"), 9), "bytes 4 to 5 of the data belong to no tensor");
    assert!(read_safetensors(safetensors(&two("u", "[4,8]"), 8)).is_ok());
    assert!(table(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0).contains("duplicate `a`"));
}

#[test]
fn headers_that_are_no_table_are_refused() {
    for text in ["", "[]", "null", "{", r#"{"t":1}"#, r#"{"__metadata__":{"a":1}}"#, "\u{1b}", r#"{"t":{}}"#] {
        let error = table(text, 0);
        assert!(error.starts_with("header: ") && !error.contains('\u{1b}'), "{error}");
    }
    let deep = format!(r#"{{"t":{}}}"#, "[".repeat(100_000));
    assert!(table(&deep, 0).starts_with("header: "));
}

#[test]
fn limits_of_both_readers_are_parameters() {
    let safetensors = Bytes::from(safetensors(&format!("{{{}}}", row("U8", "[4]", "[0,4]")), 4));
    let gguf = Bytes::from(gguf(&[("k", 0, &[1])], &[("t", &[4], 24, 0)], 32, 4));
    assert!(Checkpoint::from_gguf(&gguf, &Limits::DEFAULT).is_ok());
    for limits in [
        Limits { header_bytes: 10, ..Limits::DEFAULT },
        Limits { tensors: 0, ..Limits::DEFAULT },
        Limits { name_bytes: 0, ..Limits::DEFAULT },
        Limits { rank: 0, ..Limits::DEFAULT },
    ] {
        assert_eq!(Checkpoint::from_safetensors(&safetensors, &limits).unwrap_err().kind(), Kind::Limit);
        assert_eq!(Checkpoint::from_gguf(&gguf, &limits).unwrap_err().kind(), Kind::Limit);
    }
    let limits = Limits { entries: 0, ..Limits::DEFAULT };
    assert_eq!(Checkpoint::from_gguf(&gguf, &limits).unwrap_err().kind(), Kind::Limit);
}

fn with_version(version: u8) -> ptero_checkpoint::Result<Checkpoint> {
    let mut file = gguf(&[], &[], 32, 0);
    file.splice(4..5, [version]).for_each(drop);
    read_gguf(file)
}

#[test]
fn parts_of_a_checkpoint_are_refused() {
    let part = |count: u8| read_gguf(gguf(&[("split.count", 2, &[count, 0])], &[], 32, 0));
    assert!(refusal(part(3)).starts_with("one of 3 parts of a checkpoint\nhint: "));
    assert!(part(1).is_ok());
}

#[test]
fn other_files_and_versions_are_refused() {
    let good = gguf(&[], &[], 32, 0);
    let with = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file.splice(at..at + bytes.len(), bytes.iter().copied()).for_each(drop);
        refusal(read_gguf(file))
    };
    assert_eq!(with(0, b"GGML"), "header: not a GGUF file: it starts with `GGML`, not `GGUF`");
    assert_eq!(with(4, &[1, 0, 0, 0]), "header: GGUF version 1; versions 2 and 3 are read");
    assert_eq!(with(4, &[0, 0, 0, 3]), "header: a big-endian GGUF file; only little-endian ones are read");
    assert_eq!(with_version(2).unwrap().tensors().len(), 0);
    let forged = (1_u64 << 60).to_le_bytes();
    assert_eq!(with(8, &forged), "header: 1152921504606846976 tensors, over the limit of 1000000");
    assert_eq!(with(16, &forged), "header: 1152921504606846976 entries of metadata, over the limit of 65536");
    let few = 1000_u64.to_le_bytes();
    assert_eq!(with(8, &few), "table of tensors: 24000 bytes at offset 24 reach outside the 32 bytes there are");
    assert_eq!(with(16, &few), "metadata: 13000 bytes at offset 24 reach outside the 32 bytes there are");
}

#[test]
fn forged_values_are_refused() {
    let value = |kind: u32, value: &[u8]| refusal(read_gguf(gguf(&[("k", kind, value)], &[], 32, 64)));
    assert_eq!(value(13, &[]), "key `k`: 13 is not a known type of value");
    assert_eq!(value(7, &[2]), "key `k`: 2 is not a bool");
    assert_eq!(value(9, &[array(7, 2), vec![1, 3]].concat()), "key `k`: 3 is not a bool");
    assert!(value(8, &[255; 8]).starts_with("key `k`: 18446744073709551615 bytes at offset"));
    assert!(value(9, &array(0, 1 << 60)).starts_with("key `k`: 1152921504606846976 bytes at offset"));
    assert!(value(9, &array(12, u64::MAX)).starts_with("key `k`: 18446744073709551615 bytes at offset"));
    assert!(value(9, &array(8, 1 << 61)).starts_with("key `k`: 18446744073709551615 bytes at offset"));
    let bad_text = [array(8, 2), text("a"), 1_u64.to_le_bytes().to_vec(), vec![0xff]].concat();
    assert_eq!(value(9, &bad_text), "key `k`, element 1: text is not UTF-8");
    let deep = [array(9, 1).repeat(8), array(0, 0)].concat();
    assert!(value(9, &deep).ends_with("more arrays inside each other than the limit allows"));
    let deep = [array(9, 1).repeat(7), array(0, 0)].concat();
    assert!(read_gguf(gguf(&[("k", 9, &deep)], &[], 32, 0)).is_ok());
    let twice = gguf(&[("k", 0, &[1]), ("k", 0, &[2])], &[], 32, 0);
    assert_eq!(refusal(read_gguf(twice)), "metadata: duplicate `k`");
}

#[test]
fn forged_alignments_are_refused_and_sound_ones_honoured() {
    let with =
        |kind: u32, value: &[u8]| read_gguf(gguf(&[("general.alignment", kind, value)], &[("t", &[4], 24, 0)], 128, 4));
    assert_eq!(refusal(with(4, &[0; 4])), "key `general.alignment`: alignment 0 is not a power of two");
    assert_eq!(refusal(with(4, &[48, 0, 0, 0])), "key `general.alignment`: alignment 48 is not a power of two");
    assert_eq!(refusal(with(0, &[32])), "key `general.alignment`: not a 32-bit whole number");
    assert!(refusal(with(4, &[0, 0, 0, 128])).starts_with("tensor `t`: 4 bytes at offset 0 reach outside the 0 bytes"));
    let file = with(4, &[128, 0, 0, 0]).unwrap();
    assert_eq!(&**file.tensor("t").unwrap().bytes(), [0, 1, 2, 3]);
}

#[test]
fn forged_rows_are_refused() {
    let rows = |rows: &[common::Row<'_>]| refusal(read_gguf(gguf(&[], rows, 32, 64)));
    let one = |sizes: &[u64], kind, offset| rows(&[("t", sizes, kind, offset)]);
    let place = "table of tensors, element 0, tensor `t`: ";
    assert_eq!(one(&[1; 5], 0, 0), format!("{place}5 sizes of a shape, over the limit of 4"));
    assert_eq!(one(&[32], 10, 0), format!("{place}GGUF type 10 (Q2_K) is not one that ptero reads"));
    assert_eq!(one(&[32], 999, 0), format!("{place}GGUF type 999 (unknown) is not one that ptero reads"));
    assert_eq!(one(&[33, 2], 2, 0), "tensor `t`: rows of 33 elements are not whole blocks of 32");
    assert_eq!(one(&[16, 16], 2, 0), "tensor `t`: rows of 16 elements are not whole blocks of 32");
    assert_eq!(one(&[4], 0, 8), "tensor `t`: offset 8 is not a multiple of 32");
    assert_eq!(one(&[4], 0, 64), "tensor `t`: 16 bytes at offset 64 reach outside the 64 bytes there are");
    let last = u64::MAX - 31;
    assert!(one(&[16], 0, last).starts_with("tensor `t`: 64 bytes at offset 18446744073709551584 reach outside"));
    assert!(one(&[1 << 62, 4], 0, 0).ends_with("do not fit 64 bits"));
    assert!(one(&[1 << 62], 0, 0).ends_with("do not fit 64 bits"));
    let overlap = rows(&[("t", &[12], 0, 0), ("u", &[4], 0, 32)]);
    assert_eq!(overlap, "tensor `u`: data at 32 to 48 overlaps that of tensor `t`, which ends at 48");
    assert_eq!(rows(&[("t", &[4], 0, 0), ("t", &[4], 0, 32)]), "duplicate `t`");
}

#[test]
fn shapes_are_given_outermost_first() {
    let file = read_gguf(gguf(&[], &[("t", &[4, 3], 0, 0), ("s", &[], 0, 64)], 32, 68)).unwrap();
    assert_eq!(file.tensor("t").unwrap().shape(), [3, 4]);
    assert_eq!(file.tensor("s").unwrap().shape(), [0; 0]);
}

#[test]
fn metadata_may_be_null_as_mlx_writes_it() {
    let checkpoint =
        read_safetensors(safetensors(&format!(r#"{{"__metadata__":null,{}}}"#, row("U8", "[4]", "[0,4]")), 4)).unwrap();
    assert!(checkpoint.metadata().is_empty() && checkpoint.tensors().len() == 1);
}
