//! Where a call ends, in a text that comes in pieces.

use super::CallFormat;

/// A part of a call, after its opener.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Any white space.
    Space,
    /// Exactly this.
    Literal(&'static str),
    /// Anything up to this and including it. It is ASCII, and its first character occurs nowhere else in it.
    Until(&'static str),
    /// JSON up to the bracket that closes the one before.
    Brackets,
}

/// The state of a frame after a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    More,
    /// The frame is complete.
    Complete,
    /// This is not a call.
    Broken,
}

/// What looks like a call, as far as it is known. Each character is looked at once.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Everything so far, from the opener on.
    pub(crate) text: String,
    steps: &'static [Step],
    /// The index of the step.
    at: usize,
    /// Characters of a literal that are matched.
    matched: usize,
    depth: usize,
    is_string: bool,
    is_escaped: bool,
}

/// What a step makes of a character.
enum Taken {
    /// The step goes on.
    Yes,
    /// It was the last character of the step.
    Last,
    /// It belongs to the next step.
    No,
    Broken,
}

impl Frame {
    /// Starts after the opener.
    pub(crate) fn new(format: CallFormat) -> Self {
        let (text, steps) = (format.opener().to_owned(), format.steps());
        Self { text, steps, at: 0, matched: 0, depth: 1, is_string: false, is_escaped: false }
    }

    /// Takes the next piece up to the end of the frame, and returns how many bytes that is.
    pub(crate) fn push(&mut self, piece: &str) -> (usize, Scan) {
        for (offset, character) in piece.char_indices() {
            loop {
                match self.take(character) {
                    Taken::Yes => break,
                    Taken::No => self.next_step(),
                    Taken::Last => {
                        self.next_step();
                        if self.at == self.steps.len() {
                            return self.end(piece, offset + character.len_utf8(), Scan::Complete);
                        }
                        break;
                    }
                    Taken::Broken => return self.end(piece, offset, Scan::Broken),
                }
            }
        }
        self.end(piece, piece.len(), Scan::More)
    }

    fn end(&mut self, piece: &str, consumed: usize, scan: Scan) -> (usize, Scan) {
        self.text.push_str(piece.get(..consumed).unwrap_or_default());
        (consumed, scan)
    }

    fn next_step(&mut self) {
        self.at += 1;
        self.matched = 0;
    }

    fn take(&mut self, character: char) -> Taken {
        match self.steps.get(self.at) {
            Some(Step::Space) if character.is_whitespace() => Taken::Yes,
            Some(Step::Space) => Taken::No,
            Some(Step::Literal(literal)) => self.literal(literal, character),
            Some(Step::Until(end)) => self.until(end, character),
            Some(Step::Brackets) => self.brackets(character),
            None => Taken::Broken,
        }
    }

    fn literal(&mut self, literal: &str, character: char) -> Taken {
        if literal.as_bytes().get(self.matched).copied().map(char::from) != Some(character) {
            // What ended an earlier step was part of its text.
            let earlier = self.steps.iter().take(self.at).rposition(|step| matches!(step, Step::Until(_)));
            return match earlier {
                Some(earlier) => {
                    (self.at, self.matched) = (earlier, 0);
                    self.take(character)
                }
                None => Taken::Broken,
            };
        }
        self.matched += 1;
        if self.matched == literal.len() { Taken::Last } else { Taken::Yes }
    }

    fn until(&mut self, end: &str, character: char) -> Taken {
        let expected = |at: usize| end.as_bytes().get(at).copied().map(char::from);
        self.matched = match () {
            () if expected(self.matched) == Some(character) => self.matched + 1,
            () if expected(0) == Some(character) => 1,
            () => 0,
        };
        if self.matched == end.len() { Taken::Last } else { Taken::Yes }
    }

    fn brackets(&mut self, character: char) -> Taken {
        match (self.is_string, character) {
            (true, _) if self.is_escaped => self.is_escaped = false,
            (true, '\\') => self.is_escaped = true,
            (true, '"') => self.is_string = false,
            (true, _) => {}
            (false, '"') => self.is_string = true,
            (false, '{' | '[') => self.depth += 1,
            (false, '}' | ']') => {
                self.depth -= 1;
                if self.depth == 0 {
                    return Taken::Last;
                }
            }
            (false, _) => {}
        }
        Taken::Yes
    }
}
