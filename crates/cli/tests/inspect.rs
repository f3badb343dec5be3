//! The command as a person or a script meets it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{done, folder, ptero, root};
use expect_test::expect;
use serde_json::{Value, json};

#[track_caller]
fn shown(args: &[&str]) -> String {
    done(&root(), args)
}

#[track_caller]
fn refused(args: &[&str]) -> String {
    let output = ptero(&root(), args);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "nothing half-done on stdout");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_summary_says_what_a_person_wants_to_know() {
    expect![[r#"
        bigram.pte  38.1 kB, structure verified

        forward
          inputs   tokens       i64   [1, 1..64]
                   temperature  f32   []
                   top_k        i64   []
                   top_p        f32   []
                   seed         i64   []
          outputs  token  i64   [1]
          runs     delegate MLXBackend
          sampling Gumbel-max over [1, 128] with temperature, top-k, top-p; seed from `seed`; greedy where the temperature is 0
          weights  32.8 kB in 7 tensors: 32.8 kB bf16, 20 B f32, 8 B i64
          state    none
          nodes    40 in 3 chains
                   6 Neg, 3 ItemInt, 3 Take, 3 Where, 2 Argmax, 2 AsType, 2 Divide, 2 Greater, 2 Less,
                   2 Log, 2 Minimum, 2 Sort, 1 Add, 1 Cumsum, 1 ExpandDims, 1 If, 1 Min, 1 RandomBits,
                   1 Softmax, 1 SubtractInt, 1 Subtract

        metadata
          get_vocab_size         128
          get_max_seq_len        64
          get_max_prefill_chunk  64
          use_sampling           true
    "#]]
    .assert_eq(&shown(&["inspect", "models/bigram.pte"]));
}

#[test]
fn nodes_and_weights_are_listed_by_name() {
    let text = shown(&["inspect", "models/bigram.pte", "--nodes", "--weights"]);
    for line in [
        "  t0     bf16  [128, 128]          32.8 kB        @4736  weight\n",
        "forward, chain 0, runs at every call\n  0.0      t13 = Take(x=t7:tokens, index=-1, axis=1)\n",
        "  0.4      If(cond=v0, then_chain_idx=chain 1, else_chain_idx=chain 2)\n",
        "  1.1      t15 = RandomBits(shape=[1, 128], seed=v1, width=4)\n",
        "  2.0      t12:token = Argmax(x=t13, axis=-1, keepdims=false)\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn the_graph_that_devices_get_is_printed_with_what_the_passes_say() {
    let graph = |more: &[&str]| {
        let text = shown(&[&["inspect", "models/bigram.pte", "--graph"], more].concat());
        let (summary, graph) = text.split_once("\nforward, graph\n").unwrap();
        assert!(summary.starts_with("bigram.pte  38.1 kB, structure verified\n"), "{summary}");
        graph.to_owned()
    };
    let fused = graph(&[]);
    for part in [
        "constant v0 bf16[128, 128], 32768 bytes\n",
        "input 0: v7 i64[1, h0]\n",
        "h0 = given, at most 64\n",
        "block, runs at every call\n",
        "bf16[1, 128] = gather(v0, ",
        "\n  0.4      v62 u32[1] = sample(v16, temperature v8, top_k v9, top_p v10, min_p v63, seed v11)\noutput 0: v62 u32[1]\n",
        "\nfuse-sampler: 0.4: ",
    ] {
        assert!(fused.contains(part), "{part:?} is not in\n{fused}");
    }
    assert!(!fused.contains("\nbuffers\n") && !fused.contains(" = sort("), "{fused}");
    let separate = graph(&["--without", "fuse-sampler"]);
    for part in ["\n  1.1        v18 u32[1, 128] = random-bits() seed h2\n", " = cumsum(", "\n           else\n"] {
        assert!(separate.contains(part), "{part:?} is not in\n{separate}");
    }
    assert!(!separate.contains(" = sample(") && !separate.contains("\nfuse-sampler: "), "{separate}");
    let both = graph(&["--plan"]);
    let (first, plan) = both.split_once("\nforward, plan\n").unwrap();
    assert!(first.contains(" = sample(") && plan.contains(" = sample("), "{both}");
    assert!(plan.starts_with("buffers\n") && plan.contains("\nmemory "), "{both}");
    assert_eq!(ptero(&root(), &["inspect", "models/bigram.pte", "--graph", "--json"]).status.code(), Some(2));
}

#[test]
fn json_has_the_shape_that_scripts_rely_on() {
    let report: Value = serde_json::from_str(&shown(&["inspect", "models/bigram.pte", "--json"])).unwrap();
    assert_eq!(
        report["metadata"],
        json!({
            "get_vocab_size": 128, "get_max_seq_len": 64, "get_max_prefill_chunk": 64, "use_sampling": true
        })
    );
    let forward = &report["methods"][0];
    assert_eq!(
        forward["inputs"][0],
        json!({
            "name": "tokens", "kind": "tensor", "dtype": "i64", "shape": [1, 64], "dims": [1, { "min": 1, "max": 64 }]
        })
    );
    assert_eq!(forward["outputs"][0]["dtype"], "i64");
    assert_eq!(forward["outputs"][0]["shape"], json!([1]));
    assert_eq!(forward["graph"]["nodes"]["ArgmaxNode"], 2);
    assert_eq!(forward["graph"]["nodes"]["RandomBitsNode"], 1);
    assert_eq!(forward["graph"]["node_count"], 40);
    assert_eq!(
        forward["graph"]["chains"][1][1],
        json!({
            "op": "RandomBitsNode",
            "text": "t15 = RandomBits(shape=[1, 128], seed=v1, width=4)",
            "fields": { "out": "t15", "shape": [1, 128], "seed": "v1", "width": 4 },
            "reads": ["v1"],
            "writes": ["t15"],
            "chains": []
        })
    );
}

#[test]
fn the_page_holds_the_program_as_data_alone() {
    let page = folder("page").join("bigram.html");
    shown(&["inspect", "models/bigram.pte", "--html", page.to_str().unwrap()]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("<title>bigram.pte"), "{}", &page[..300]);
    let (_, data) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["methods"][0]["graph"]["node_count"], 40);
    for address in ["http://", "https://", "src=\"", "@import"] {
        assert!(!page.contains(address), "the page must need nothing else, but has {address}");
    }
}

#[test]
fn a_program_that_is_not_sound_is_shown_and_the_problem_named() {
    let mut program = ptero_pte::Program::open(&root().join("models/bigram.pte"), &ptero_pte::Limits::DEFAULT).unwrap();
    if let ptero_pte::Payload::Mlx(graph) = &mut program.methods[0].delegates[0].payload {
        graph.instruction_chains[1].remove(0);
        graph.named_slots[12].name = "b16a/to\u{1b}[2Jken".to_owned();
    }
    let path = folder("unsound").join("unsound.pte");
    program.write(&mut std::fs::File::create(&path).unwrap()).unwrap();
    let output = ptero(&root(), &["inspect", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("unsound.pte  38.1 kB, NOT SOUND, see below\n"), "{text}");
    assert!(text.contains("outputs  to\\u{1b}[2Jken  i64"), "a name cannot drive the terminal: {text}");
    expect!["problem  method `forward`, delegate 0, instruction 0.4 (If), field `then_chain_idx`, instruction 1.0 (RandomBits), field `seed`: reads v1 before anything writes it"]
        .assert_eq(text.lines().last().unwrap());
    let out = path.with_file_name("out.pte");
    let error = refused(&["rewrite", path.to_str().unwrap(), out.to_str().unwrap()]);
    assert!(error.contains("reads v1 before anything writes it"), "{error}");
    assert!(!out.exists());
}

#[test]
fn what_cannot_be_opened_is_one_line_on_stderr() {
    assert!(refused(&["inspect", "no-such.pte"]).starts_with("error: no-such.pte: No such file or directory"));
    assert_eq!(refused(&["inspect", "models"]), "error: models: not a regular file\n");
    assert_eq!(
        refused(&["inspect", "Cargo.toml"]),
        "error: Cargo.toml: not an ExecuTorch program: the identifier at byte 4 is `kspa`, not `ET12`\n"
    );
    assert_eq!(ptero(&root(), &["inspect"]).status.code(), Some(2), "wrong usage is status 2");
}

#[test]
fn rewriting_our_own_program_changes_no_byte_even_in_place() {
    let path = folder("rewrite").join("bigram.pte");
    let text = path.to_str().unwrap();
    shown(&["rewrite", "models/bigram.pte", text]);
    shown(&["rewrite", text, text]);
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(root().join("models/bigram.pte")).unwrap());
    let left: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "no temporary file is left");
}

#[test]
fn weights_from_a_data_file_become_part_of_the_program() {
    let folder = folder("external");
    let mut program = ptero_pte::Program::open(&root().join("models/bigram.pte"), &ptero_pte::Limits::DEFAULT).unwrap();
    let entries = std::mem::take(&mut program.named_data);
    let [pte, ptd, one] =
        ["light.pte", "weights.ptd", "one.pte"].map(|name| folder.join(name).to_str().unwrap().to_owned());
    program.write(&mut std::fs::File::create(&pte).unwrap()).unwrap();
    ptero_pte::TensorData { entries }.write(&mut std::fs::File::create(&ptd).unwrap()).unwrap();

    assert_eq!(ptero(&root(), &["inspect", &pte]).status.code(), Some(1), "its weights are missing");
    assert!(shown(&["inspect", &pte, "--data", &ptd]).contains("weights  32.8 kB in 7 tensors"));
    assert!(refused(&["inspect", &ptd]).contains("hint: pass the program and name this file with --data"));
    shown(&["rewrite", &pte, "--data", &ptd, &one]);
    assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(root().join("models/bigram.pte")).unwrap());
}
