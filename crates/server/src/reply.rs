//! A reply, read as it comes: thoughts, content, and calls of functions.

use crate::tools::{Call, Frame, Scan, Tools};
use std::sync::Arc;

/// The most calls of a reply.
const MOST_CALLS: usize = 128;
/// White space before thoughts, at most.
const MOST_SPACE: usize = 64;

/// What thoughts are written between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thoughts {
    open: &'static str,
    close: &'static str,
    /// Special tokens that they are written with.
    pub(crate) special: &'static [&'static str],
}

/// The ways to write thoughts; the first whose marks a chat template has is its own.
const THOUGHTS: [Thoughts; 3] = [
    Thoughts { open: "<think>", close: "</think>", special: &["<think>", "</think>"] },
    Thoughts { open: "<|channel>thought", close: "<channel|>", special: &["<|channel>", "<channel|>"] },
    Thoughts { open: "[THINK]", close: "[/THINK]", special: &["[THINK]", "[/THINK]"] },
];

impl Thoughts {
    /// Returns how the models of a chat template write thoughts, if they do.
    pub(crate) fn of(template: &str) -> Option<Self> {
        let marks = |thoughts: &&Self| match thoughts.special {
            [open, close] => template.contains(open) && template.contains(close) || template.contains(thoughts.close),
            _ => false,
        };
        THOUGHTS.iter().find(marks).copied()
    }

    /// Returns `true` if a prompt ends within thoughts.
    pub(crate) fn are_open_after(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }

    /// Returns what ends the thoughts that a prompt ends within.
    pub(crate) fn closing(&self) -> String {
        format!("\n{}\n\n", self.close)
    }
}

/// A part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Reasoning(String),
    Content(String),
    Call(Call),
}

impl Part {
    /// Returns the text of what is not a call.
    pub(crate) fn into_text(self) -> String {
        match self {
            Self::Reasoning(text) | Self::Content(text) => text,
            Self::Call(call) => call.arguments,
        }
    }
}

/// Splits a reply into its parts. How the text is cut into pieces makes no difference, except where parts are cut.
#[derive(Clone, Debug)]
pub(crate) struct ReplyReader {
    thoughts: Option<Thoughts>,
    tools: Option<Arc<Tools>>,
    state: State,
    /// The start of what may be a mark.
    held: String,
    /// White space that belongs to a text only if more of the text follows.
    space: String,
    /// `true` if the part in progress has begun.
    has_begun: bool,
    calls: usize,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing is known.
    Start,
    Thoughts,
    Content,
    Frame(Box<Frame>),
}

impl ReplyReader {
    /// Starts a reply; `is_thinking` if the prompt ended within thoughts.
    pub(crate) fn new(thoughts: Option<Thoughts>, tools: Option<Arc<Tools>>, is_thinking: bool) -> Self {
        let state = match thoughts {
            Some(_) if is_thinking => State::Thoughts,
            Some(_) => State::Start,
            None => State::Content,
        };
        Self { thoughts, tools, state, held: String::new(), space: String::new(), has_begun: false, calls: 0 }
    }

    /// Returns `true` within thoughts.
    pub(crate) fn is_thinking(&self) -> bool {
        matches!(self.state, State::Thoughts)
    }

    /// Takes the next piece of the text.
    pub(crate) fn push(&mut self, piece: &str, parts: &mut Vec<Part>) {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(piece);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            rest = match &self.state {
                State::Start => self.start(rest),
                State::Thoughts => self.think(rest, parts),
                State::Content => self.content(rest, parts),
                State::Frame(_) => self.frame(rest, parts),
            };
        }
    }

    /// Ends the text.
    pub(crate) fn finish(&mut self, parts: &mut Vec<Part>) {
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Content) {
            State::Start | State::Content => self.say(&held, parts),
            State::Thoughts => {
                add(parts, Part::Reasoning(self.continued(&held)));
                self.space.clear();
            }
            State::Frame(frame) => self.end_frame(&frame.text, parts),
        }
        // White space after a call is not content.
        if self.calls == 0 || self.has_begun {
            add(parts, Part::Content(std::mem::take(&mut self.space)));
        }
    }

    /// Finds out whether the reply begins with thoughts.
    fn start<'a>(&mut self, text: &'a str) -> &'a str {
        let open = self.thoughts.map_or("", |thoughts| thoughts.open);
        let begun = text.trim_start();
        if let Some(rest) = begun.strip_prefix(open) {
            self.state = State::Thoughts;
            return rest;
        }
        if open.starts_with(begun) && text.len() < MOST_SPACE {
            self.held = text.to_owned();
            return "";
        }
        self.state = State::Content;
        text
    }

    fn think<'a>(&mut self, text: &'a str, parts: &mut Vec<Part>) -> &'a str {
        let close = self.thoughts.map_or("", |thoughts| thoughts.close);
        let Some((thought, rest)) = text.split_once(close) else {
            let (sure, held) = split_at_start_of(text, close);
            self.held = held.to_owned();
            let thought = self.continued(sure);
            add(parts, Part::Reasoning(thought));
            return "";
        };
        let thought = self.continued(thought);
        add(parts, Part::Reasoning(thought));
        self.space.clear();
        (self.state, self.has_begun) = (State::Content, false);
        rest
    }

    fn content<'a>(&mut self, text: &'a str, parts: &mut Vec<Part>) -> &'a str {
        let Some(opener) = self.tools.as_ref().map(|tools| tools.format.opener()) else {
            self.say(text, parts);
            return "";
        };
        if opener.is_empty() {
            // A reply is calls from its start on, or none.
            let between = |character: char| character.is_whitespace() || self.calls > 0 && character == ';';
            let begun = text.trim_start_matches(between);
            if !self.has_begun && (begun.is_empty() || begun.starts_with('{')) {
                self.space.push_str(text.get(..text.len() - begun.len()).unwrap_or_default());
                self.open_frame(begun);
                return begun;
            }
            self.say(text, parts);
            return "";
        }
        if let Some((before, rest)) = text.split_once(opener) {
            self.say(before, parts);
            self.open_frame(opener);
            return rest;
        }
        let (sure, held) = split_at_start_of(text, opener);
        self.say(sure, parts);
        self.held = held.to_owned();
        ""
    }

    /// Starts a frame, unless nothing has come that could begin one.
    fn open_frame(&mut self, begun: &str) {
        if let Some(tools) = self.tools.as_ref().filter(|_| !begun.is_empty()) {
            self.state = State::Frame(Box::new(Frame::new(tools.format)));
        }
    }

    fn frame<'a>(&mut self, text: &'a str, parts: &mut Vec<Part>) -> &'a str {
        let State::Frame(frame) = &mut self.state else { return text };
        let (consumed, scan) = frame.push(text);
        let rest = text.get(consumed..).unwrap_or_default();
        if scan != Scan::More {
            let frame = std::mem::take(&mut frame.text);
            self.state = State::Content;
            match scan {
                Scan::Complete => self.end_frame(&frame, parts),
                Scan::More | Scan::Broken => self.say(&frame, parts),
            }
        }
        rest
    }

    /// Takes the calls of a frame; what is none is content.
    fn end_frame(&mut self, frame: &str, parts: &mut Vec<Part>) {
        let Some(tools) = self.tools.clone() else { return };
        let calls = tools.calls(frame).filter(|calls| self.calls + calls.len() <= MOST_CALLS);
        let Some(calls) = calls else { return self.say(frame, parts) };
        self.space.clear();
        self.has_begun = false;
        for call in calls {
            // If only one call is wanted, others are not made.
            if tools.allows_several || self.calls == 0 {
                self.calls += 1;
                parts.push(Part::Call(call));
            }
        }
    }

    /// Adds content. White space around it waits for more of it.
    fn say(&mut self, text: &str, parts: &mut Vec<Part>) {
        let text = self.continued(text);
        add(parts, Part::Content(text));
    }

    /// Returns how a text goes on, without white space at its start if something came before it, and at its end.
    fn continued(&mut self, text: &str) -> String {
        let follows =
            self.is_thinking() || self.thoughts.is_some() && !matches!(self.state, State::Start) || self.calls > 0;
        let begun = if !self.has_begun && follows { text.trim_start() } else { text };
        let said = begun.trim_end();
        if said.is_empty() {
            self.space.push_str(begun);
            return String::new();
        }
        let mut continued = if self.has_begun || !follows { std::mem::take(&mut self.space) } else { String::new() };
        self.space.clear();
        continued.push_str(said);
        self.space.push_str(begun.get(said.len()..).unwrap_or_default());
        self.has_begun = true;
        continued
    }
}

/// Adds a part that is not empty; to the last one, if that is of its kind.
pub(crate) fn add(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
        (_, Part::Content(text) | Part::Reasoning(text)) if text.is_empty() => {}
        (Some(Part::Content(last)), Part::Content(text)) | (Some(Part::Reasoning(last)), Part::Reasoning(text)) => {
            last.push_str(&text);
        }
        (_, part) => parts.push(part),
    }
}

/// Splits a text before the longest end that a mark begins with.
fn split_at_start_of<'a>(text: &'a str, mark: &str) -> (&'a str, &'a str) {
    let longest = mark.len().min(text.len() + 1) - 1;
    let starts = (1..=longest).rev().filter_map(|length| mark.get(..length));
    let held = starts.filter(|start| text.ends_with(start)).map(str::len).next().unwrap_or(0);
    text.split_at(text.len() - held)
}

#[cfg(test)]
mod tests;
