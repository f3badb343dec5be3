//! Against ExecuTorch's own programs: the sampling heads of its suite, and whole models exported with and without sampling.

use crate::draw::{Session, With, backends};
use crate::head::CASES;
use crate::trace::head;
use ptero_export::{Graft, graft};
use ptero_pte::{Delegate, Limits, Program, Verified};
use std::path::{Path, PathBuf};

fn conformance(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance").join(folder)
}

fn open(path: &Path) -> Verified {
    Verified::open(path, &Limits::DEFAULT).unwrap()
}

fn graph(program: &Program) -> &Delegate {
    program.method("forward").unwrap().mlx_delegates().next().unwrap().1
}

#[test]
fn s0_8_the_head_is_upstreams_node_by_node() {
    for case in CASES {
        let (upstream, ours) = (open(&conformance("heads").join(case.name).join("model.pte")), case.program());
        assert_eq!(head(&ours, graph(&ours)), head(&upstream, graph(&upstream)), "{}", case.name);
    }
}

#[test]
fn s1_1_a_grafted_model_is_the_one_that_upstream_exports_with_sampling() {
    for name in ["qwen3_5_moe_int4", "gemma4_31b_int4"] {
        let models = conformance("models");
        let [plain, sampling] =
            [name.to_owned(), format!("{name}_sample")].map(|name| models.join(name).join("model.pte"));
        let plain = Program::open(&plain, &Limits::DEFAULT).unwrap();
        let ours = graft(plain, &Graft::default(), &Limits::DEFAULT).unwrap();
        let upstream = open(&sampling);
        assert_eq!(head(&ours, graph(&ours)), head(&upstream, graph(&upstream)), "{}", sampling.display());
        let (method, wanted) = (ours.method("forward").unwrap(), upstream.method("forward").unwrap());
        assert_eq!(method.inputs.len(), wanted.inputs.len());
        assert_eq!(method.container, wanted.container);
        assert_eq!(ours.method("use_sampling"), upstream.method("use_sampling"));
        let mut sessions = [&ours, &upstream].map(|program| Session::new(program, backends()[1].as_ref()));
        for seed in 0..12 {
            let tokens = crate::draw::i64s(&[1, 3], &[seed, 2, 5]);
            let positions = crate::draw::i64s(&[3], &[0, 1, 2]);
            let with = With { temperature: 0.8, top_k: 40 + seed, top_p: 0.9, seed: Some(seed) };
            let given: Vec<_> = [tokens, positions].into_iter().chain(with.given()).collect();
            let [one, other] = sessions.each_mut().map(|session| session.call(&given));
            assert_eq!(one, other, "{} seed {seed}", sampling.display());
        }
    }
}
