//! The documentation names only what exists: paths, links and recipes of `just`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns every page with its text.
fn pages() -> Vec<(PathBuf, String)> {
    let folders = ["", "docs", "models", "conformance", "training", "fuzz"].map(|folder| root().join(folder));
    let files = folders.iter().flat_map(|folder| folder.read_dir().unwrap()).map(|entry| entry.unwrap().path());
    let pages: Vec<_> = files.filter(|path| path.extension() == Some("md".as_ref())).collect();
    assert!(pages.len() > 10, "{pages:?}");
    pages.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// Panics with everything that is wrong.
#[track_caller]
fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_path_in_the_documentation_exists() {
    let tops = ["crates/", "docs/", "conformance/", "training/", "benches/", "models/", "fuzz/", ".ci/"];
    // What `just` recipes and fuzzing make.
    let made = ["fuzz/corpus", "fuzz/artifacts"];
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        let is_separator = |c: char| !(c.is_ascii_alphanumeric() || "_./-".contains(c));
        let paths = text.split(is_separator).filter(|word| tops.iter().any(|top| word.starts_with(top)));
        for path in paths.map(|path| path.trim_end_matches(['.', '/'])) {
            if !root().join(path).exists() && !made.iter().any(|made| path.starts_with(made)) {
                wrong.push(format!("{} names {path}", page.display()));
            }
        }
    }
    assert_none(&wrong);
}

/// Returns the anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let letters = heading.trim_start_matches('#').trim().to_lowercase();
    letters
        .chars()
        .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn every_link_in_the_documentation_leads_somewhere() {
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name("").join(file) };
            let has_heading = || {
                let text = std::fs::read_to_string(&target).unwrap_or_default();
                text.lines().filter(|line| line.starts_with('#')).any(|line| anchor(line) == heading)
            };
            if !target.exists() || !(heading.is_empty() || has_heading()) {
                wrong.push(format!("{} links to {link}", page.display()));
            }
        }
    }
    assert_none(&wrong);
}

#[test]
fn every_recipe_of_just_in_the_documentation_exists() {
    let justfile = std::fs::read_to_string(root().join("justfile")).unwrap();
    let recipes = justfile.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let recipes: Vec<&str> = recipes.filter_map(|line| line.split([' ', ':']).next()).collect();
    let mut wrong = Vec::new();
    for (page, text) in pages() {
        // Every second piece is code: between the fences of a block, or between backticks.
        let blocks = text.split("```").skip(1).step_by(2).flat_map(str::lines);
        let inline = text.split("```").step_by(2).flat_map(|prose| prose.split('`').skip(1).step_by(2));
        let commands = blocks.chain(inline).filter_map(|code| code.strip_prefix("just "));
        for recipe in commands.filter_map(|command| command.split_whitespace().next()) {
            if !recipes.contains(&recipe) {
                wrong.push(format!("{} names `just {recipe}`", page.display()));
            }
        }
    }
    assert_none(&wrong);
}
