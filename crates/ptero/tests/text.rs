//! The library as its users see it: texts, conversations, forks, stops, and errors they can match.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use ptero::{Device, Error, FinishReason, Generator, Model, Options};
use std::path::{Path, PathBuf};

fn model() -> Model {
    Options::new().threads(1).included_model().unwrap()
}

fn generator(tokens: usize) -> Generator {
    model().generator().temperature(0.9).seed(7).max_tokens(tokens).start().unwrap()
}

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../export/tests/tiny").join(name)
}

/// A model with a chat template, although it was trained on none.
fn chat_model(name: &str) -> Model {
    let template = std::env::temp_dir().join(format!("ptero-template-{}-{name}.jinja", std::process::id()));
    let source = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                  {% if add_generation_prompt %}assistant: {% endif %}";
    std::fs::write(&template, source).unwrap();
    let model = Options::new().threads(1).chat_template(&template).included_model().unwrap();
    std::fs::remove_file(template).unwrap();
    model
}

#[test]
fn pieces_add_up_to_the_text_and_the_same_seed_repeats_it() {
    let mut first = generator(20);
    let mut text = first.generate("Once upon a time").unwrap();
    assert!(text.prompt_tokens() > 1);
    let pieces: Vec<_> = text.by_ref().map(Result::unwrap).collect();
    let finish = text.finish();
    let joined: String = pieces.iter().map(ToString::to_string).collect();
    assert_eq!((joined.as_str(), finish.reason, finish.seed), (finish.text.as_str(), FinishReason::Length, Some(7)));
    assert_eq!(finish.timings.new_tokens, 20);
    let tokens: Vec<_> = pieces.iter().filter_map(|piece| piece.token).collect();
    assert_eq!(model().decode(&tokens).unwrap().trim_start(), finish.text.trim_start());
    assert_eq!(generator(20).generate("Once upon a time").unwrap().text().unwrap(), finish.text);
    // The seeds of the next text follow.
    assert_eq!(first.options().seed, Some(27));
}

#[test]
fn a_text_that_is_dropped_early_ends_there_and_the_rest_follows_with_the_next_seed() {
    let prompt = model().encode("Once upon a time").unwrap();
    let whole: Vec<u32> = tokens(generator(12).generate_tokens(&prompt).unwrap());
    let mut generator = generator(12);
    let begun: Vec<u32> = tokens(generator.generate_tokens(&prompt).unwrap().take(5));
    assert_eq!(begun, whole[..5]);
    let longer = [prompt, begun].concat();
    assert_eq!(tokens(generator.generate_tokens(&longer).unwrap().take(7)), whole[5..]);
}

/// `python/tests/test_text.py` holds Python, the command and the server to the same file.
#[test]
fn s1_8_a_recorded_text_is_the_same_on_every_machine_and_in_every_language() {
    let mut generator = model().generator().temperature(0.8).seed(42).max_tokens(100).start().unwrap();
    let text = generator.generate("Once upon a time").unwrap().text().unwrap();
    assert_eq!(text, include_str!("story.txt"));
}

fn tokens(text: impl Iterator<Item = ptero::Result<ptero::Piece>>) -> Vec<u32> {
    text.filter_map(|piece| piece.unwrap().token).collect()
}

#[test]
fn a_fingerprint_names_what_texts_follow_from() {
    let folder = std::env::temp_dir().join(format!("ptero-fingerprint-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let name = |options: &Options| options.included_model().unwrap().fingerprint().unwrap().to_owned();
    let base = Options::new().threads(1);
    let plain = name(&base);
    assert_eq!(plain.len(), "0123456789abcdef-a1".len());
    assert_eq!(name(&base.clone().threads(2).device(Device::Reference)), plain, "the same bits");

    let template = folder.join("chat.jinja");
    let with_template = |source: &str| {
        std::fs::write(&template, source).unwrap();
        name(&base.clone().chat_template(&template))
    };
    let first = with_template("{{ messages[0].content }}");
    assert_eq!(with_template("{{ messages[0].content }}"), first, "loading again changes nothing");
    let second = with_template("{{ messages[-1].content }}");

    // A tokenizer from elsewhere brings the generation config beside it.
    let tokenizer = folder.join("tokenizer.json");
    let words = r#"{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}"#;
    std::fs::write(&tokenizer, words).unwrap();
    let with_config = |config: &str| {
        std::fs::write(folder.join("generation_config.json"), config).unwrap();
        name(&base.clone().tokenizer(&tokenizer))
    };
    let warm = with_config(r#"{"temperature": 0.7}"#);
    assert_eq!(with_config(r#"{"temperature": 0.7, "transformers_version": "5.0"}"#), warm, "it changes no text");
    let cold = with_config(r#"{"temperature": 0.1}"#);
    let ends = with_config(r#"{"temperature": 0.1, "eos_token_id": [1, 2, 3]}"#);
    std::fs::remove_dir_all(folder).unwrap();

    let all = [plain, first, second, warm, cold, ends];
    let different: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(different.len(), all.len(), "{all:?}");
}

#[test]
fn stop_strings_and_flags_end_a_text() {
    let whole = generator(40).generate("Once upon a time").unwrap().text().unwrap();
    let word = whole.split_whitespace().nth(3).unwrap();
    let stopped = model().generator().temperature(0.9).seed(7).max_tokens(40).stop([word]).start();
    let (mut stopped, before) = (stopped.unwrap(), whole.split_once(word).unwrap().0);
    let mut text = stopped.generate("Once upon a time").unwrap();
    text.by_ref().for_each(|piece| assert!(piece.is_ok()));
    let finish = text.finish();
    assert_eq!((finish.text.as_str(), finish.reason), (before, FinishReason::StopString));

    let mut flagged = generator(40);
    let flag = flagged.stop_flag();
    let mut text = flagged.generate("Once upon a time").unwrap();
    assert!(text.next().unwrap().is_ok());
    flag.stop();
    assert!(text.by_ref().count() <= 1);
    assert_eq!(text.finish().reason, FinishReason::Stopped);
}

#[test]
fn forks_go_their_own_way() {
    let mut trunk = generator(1);
    trunk.generate("The king").unwrap().text().unwrap();
    let [mut one, mut two] = [trunk.fork().unwrap(), trunk.fork().unwrap()];
    for (fork, seed) in [(&mut one, 3), (&mut two, 4)] {
        fork.set_seed(seed);
        fork.set_max_tokens(12);
    }
    let [said, other] = [&mut one, &mut two].map(|fork| fork.generate("The king").unwrap().text().unwrap());
    assert_ne!(said, other);
    let mut alone = model().generator().temperature(0.9).seed(3).max_tokens(12).start().unwrap();
    assert_eq!(alone.generate("The king").unwrap().text().unwrap(), said);
}

#[test]
fn a_conversation_remembers_forks_and_retries() {
    let model = chat_model("remembers");
    let start = || model.chat().system("Be brief.").temperature(0.8).seed(5).max_tokens(8).start().unwrap();
    let mut chat = start();
    let reply = chat.send("Who are you?").unwrap().text().unwrap();
    let roles: Vec<_> = chat.messages().iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    assert_eq!(chat.messages()[2].content, reply.as_str());
    let mut fork = chat.fork().unwrap();
    assert_eq!(fork.send("And I?").unwrap().text().unwrap(), chat.send("And I?").unwrap().text().unwrap());
    let again = chat.retry().unwrap().text().unwrap();
    assert_eq!((chat.messages().len(), &chat.messages()[4].content), (5, &again.as_str().into()));
    drop(chat.send("Never mind.").unwrap());
    assert_eq!(chat.messages().len(), 5, "what the model has not read was not said");
    drop(chat.retry().unwrap());
    assert_eq!(chat.messages().len(), 4, "the message stays, to be answered");
    chat.clear();
    assert_eq!(chat.messages().len(), 1);
    assert!(matches!(chat.retry().map(drop), Err(Error::NothingToReplyTo)));
    // What the state holds of the old conversation does not show.
    assert_eq!(start().send("Who are you?").unwrap().text().unwrap(), reply);
}

#[test]
fn a_conversation_that_outgrows_the_context_forgets_its_oldest_turns() {
    let mut chat = chat_model("outgrows").chat().system("Be brief.").temperature(0.0).max_tokens(4).start().unwrap();
    let message = "word ".repeat(chat.model().context() / 5);
    for _ in 0..6 {
        chat.send(&message).unwrap().text().unwrap();
    }
    assert!(chat.forgotten() >= 2 && chat.forgotten().is_multiple_of(2), "{}", chat.forgotten());
    assert_eq!(chat.messages()[0].role, "system");
    let count = chat.messages().len();
    let long = "word ".repeat(2 * chat.model().context());
    assert!(matches!(chat.send(&long).map(drop), Err(Error::Engine(_))));
    assert!(chat.messages().len() <= count, "a message that does not fit is not part of the conversation");
}

#[test]
fn checkpoints_open_and_errors_can_be_matched() {
    let model = Options::new().device(Device::Reference).included_model().unwrap();
    assert!(!model.has_chat_template() && model.samples_itself());
    assert!(matches!(model.chat().start().map(drop), Err(Error::NoChatTemplate)));
    assert!(matches!(model.generator().temperature(-1.0).start().map(drop), Err(Error::Engine(_))));
    assert!(matches!(Model::open("no such model"), Err(Error::NotASource(_))));
    let error = Model::open("no-such.pte").map(drop).unwrap_err();
    assert!(matches!(error.innermost(), Error::Program(_)) && error.to_string().contains("no-such.pte"), "{error}");
    assert!(matches!("tpu".parse::<Device>(), Err(Error::UnknownDevice { .. })));
    assert!(Options::new().tokenizer(tiny("llama").join("none.json")).included_model().is_err());
}

#[test]
fn models_are_shared_by_threads() {
    fn shared<T: Send + Sync + Clone>() {}
    fn moved<T: Send>() {}
    shared::<Model>();
    moved::<Generator>();
    moved::<ptero::Chat>();
}
