//! Rewrites a template before Jinja parses it.
//!
//! Jinja counts steps, but a step may double a text: `{% set x = x ~ x %}` forty times is a terabyte. So the operands of
//! operators that copy or walk get a filter of ours, which counts (`budget`); its results are the values themselves.
//! Nothing is put on a line of its own, so that errors still name the right line.

use crate::Result;
use crate::error::at_most;

/// The filters of `budget`: for values that are visited, written as text or repeated, and for plain text.
pub(super) const WALKED: &str = "__walked";
pub(super) const WRITTEN: &str = "__written";
pub(super) const REPEATED: &str = "__repeated";
pub(super) const PLAIN: &str = "__plain";

/// Operators, brackets, dots and filters of an expression. Jinja's parser recurses once for each.
pub(super) const LONGEST_CHAIN: usize = 500;
/// Plain text of fewer bytes is not counted: a step pays for it.
const SMALL_TEXT: usize = 256;
/// Words after which no operand ends.
const KEYWORDS: &[&str] = &["and", "or", "not", "in", "is", "if", "else", "recursive"];

/// The template with counting filters, and with `{% generation %}`, which only training needs, as `{% with %}`.
///
/// # Errors
/// When an expression is too long for Jinja's parser.
pub(super) fn rewrite(source: &str) -> Result<String> {
    let mut out = String::with_capacity(source.len() * 2);
    let mut rest = source;
    // Each `elif` is nested in the one before, too.
    at_most("`elif` in the chat template", source.matches("elif").count(), LONGEST_CHAIN)?;
    while let Some(at) = next_tag(rest) {
        let (text, tag) = rest.split_at_checked(at).unwrap_or((rest, ""));
        plain(text, &mut out);
        rest = if tag.starts_with("{#") { copy_until(tag, "#}", &mut out) } else { copy_tag(tag, &mut out)? };
    }
    plain(rest, &mut out);
    Ok(out)
}

fn next_tag(text: &str) -> Option<usize> {
    ["{{", "{%", "{#"].iter().filter_map(|open| text.find(open)).min()
}

/// Copies plain text and inserts a count between two characters that are not whitespace; not after a brace, which would be part of
/// another tag then.
fn plain(text: &str, out: &mut String) {
    let solid = |pair: &[(usize, char)]| match pair {
        [(_, '{'), _] => None,
        [(_, before), (at, after)] if !before.is_whitespace() && !after.is_whitespace() => Some(*at),
        _ => None,
    };
    let characters: Vec<_> = if text.len() > SMALL_TEXT { text.char_indices().collect() } else { Vec::new() };
    match characters.windows(2).find_map(solid).and_then(|at| text.split_at_checked(at)) {
        Some((before, after)) => {
            out.push_str(before);
            out.push_str(&format!("{{{{ ''|{PLAIN}({}) }}}}", text.len()));
            out.push_str(after);
        }
        None => out.push_str(text),
    }
}

fn copy_until<'a>(text: &'a str, end: &str, out: &mut String) -> &'a str {
    let at = text.find(end).map_or(text.len(), |at| at + end.len());
    let (copied, rest) = text.split_at_checked(at).unwrap_or((text, ""));
    out.push_str(copied);
    rest
}

/// Copies a tag with its filters; of `{% raw %}` all up to its end.
fn copy_tag<'a>(tag: &'a str, out: &mut String) -> Result<&'a str> {
    let is_block = tag.starts_with("{%");
    let mut tokens =
        Tokens { rest: tag.get(2..).unwrap_or_default(), end: if is_block { "%}" } else { "}}" }, depth: 0 };
    out.push_str(if is_block { "{%" } else { "{{" });
    let mut operands = Operands { outermost: Frame::default(), frames: Vec::new(), target: None, chain: 0 };
    let mut first = is_block;
    let mut name = "";
    while let Some(token) = tokens.next() {
        match token {
            Token::Space(text) => out.push_str(text),
            // The sign of `{%-` before the name.
            Token::Other(sign @ ("-" | "+")) if first => out.push_str(sign),
            Token::Word(word) if first => {
                (first, name) = (false, word);
                operands.target = match word {
                    "for" => Some("in"),
                    "set" => Some("="),
                    _ => None,
                };
                out.push_str(match word {
                    "generation" => "with",
                    "endgeneration" => "endwith",
                    word => word,
                });
            }
            token => operands.take(token, out),
        }
        at_most("operators in an expression of the chat template", operands.chain, LONGEST_CHAIN)?;
    }
    operands.flush(out);
    let rest = copy_until(tokens.rest, tokens.end, out);
    if name != "raw" {
        return Ok(rest);
    }
    let end = rest.match_indices("{%").find(|(at, _)| {
        let inside = rest.get(at + 2..).unwrap_or_default().trim_start_matches(['-', '+']).trim_start();
        inside.starts_with("endraw")
    });
    let (raw, rest) = rest.split_at_checked(end.map_or(rest.len(), |(at, _)| at)).unwrap_or((rest, ""));
    out.push_str(raw);
    Ok(copy_until(rest, "%}", out))
}

#[derive(Clone, Copy, PartialEq)]
enum Token<'a> {
    Space(&'a str),
    Word(&'a str),
    /// A number or a quoted text.
    Literal(&'a str),
    Open(&'a str),
    Close(&'a str),
    Other(&'a str),
}

/// The tokens of a tag up to its end.
struct Tokens<'a> {
    rest: &'a str,
    end: &'static str,
    depth: usize,
}

impl<'a> Tokens<'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        let first = self.rest.chars().next()?;
        let closes = self.rest.trim_start_matches(['-', '+']).starts_with(self.end);
        // A minus before the end belongs to the end.
        if self.depth == 0 && closes && self.rest.find(self.end).is_some_and(|at| at <= 1) {
            return None;
        }
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        let is_long = || ["**", "//", "==", "!=", "<=", ">="].iter().any(|operator| self.rest.starts_with(operator));
        let length = match first {
            _ if first.is_whitespace() => self.run(char::is_whitespace),
            '"' | '\'' => self.quoted(first),
            _ if is_word(first) => self.run(is_word),
            _ if is_long() => 2,
            _ => first.len_utf8(),
        };
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(match first {
            _ if first.is_whitespace() => Token::Space(text),
            '"' | '\'' | '0'..='9' => Token::Literal(text),
            _ if is_word(first) => Token::Word(text),
            '(' | '[' | '{' => {
                self.depth += 1;
                Token::Open(text)
            }
            ')' | ']' | '}' => {
                self.depth = self.depth.saturating_sub(1);
                Token::Close(text)
            }
            _ => Token::Other(text),
        })
    }

    fn run(&self, belongs: impl Fn(char) -> bool) -> usize {
        self.rest.find(|character| !belongs(character)).unwrap_or(self.rest.len())
    }

    /// The length of a quoted text with its quotes.
    fn quoted(&self, quote: char) -> usize {
        let mut escaped = false;
        for (at, character) in self.rest.char_indices().skip(1) {
            match character {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                _ if character == quote => return at + 1,
                _ => {}
            }
        }
        self.rest.len()
    }
}

/// The state inside a pair of brackets.
#[derive(Default)]
struct Frame {
    /// An operand ends here, unless what follows belongs to it.
    ended: bool,
    /// The filter that the operand gets at its end.
    owed: Option<&'static str>,
    /// The bracket starts an operand, which is counted when it is complete.
    builds: bool,
}

/// Finds where operands end.
struct Operands {
    outermost: Frame,
    /// Inside brackets.
    frames: Vec<Frame>,
    /// The token that ends the names that are assigned to, which get no filters.
    target: Option<&'static str>,
    /// Operators since the last comma, which make the expression deeper.
    chain: usize,
}

impl Operands {
    fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().unwrap_or(&mut self.outermost)
    }

    /// Ends the operand and adds the filter that it is owed.
    fn flush(&mut self, out: &mut String) {
        let frame = self.frame();
        if let (Some(filter), true) = (frame.owed.take(), frame.ended) {
            charge(filter, out);
        }
        frame.ended = false;
    }

    fn take(&mut self, token: Token<'_>, out: &mut String) {
        match token {
            Token::Other(",") => self.chain = 0,
            Token::Open(_) | Token::Other(_) => self.chain += 1,
            Token::Word(word) if KEYWORDS.contains(&word) => self.chain += 1,
            Token::Space(_) | Token::Word(_) | Token::Literal(_) | Token::Close(_) => {}
        }
        match token {
            Token::Space(text) => out.push_str(text),
            Token::Other(text) | Token::Word(text) if self.target == Some(text) => {
                self.target = None;
                self.outermost.owed = (text == "in").then_some(WALKED);
                out.push_str(text);
            }
            Token::Other(text) | Token::Word(text) | Token::Literal(text) | Token::Open(text) | Token::Close(text)
                if self.target.is_some() =>
            {
                out.push_str(text);
            }
            Token::Word(word) if KEYWORDS.contains(&word) => self.operator(word, out),
            Token::Word(text) | Token::Literal(text) => {
                out.push_str(text);
                self.frame().ended = true;
            }
            Token::Open(bracket) => {
                let builds = !self.frame().ended;
                self.frames.push(Frame { builds, ..Frame::default() });
                out.push_str(bracket);
            }
            Token::Close(bracket) => {
                self.flush(out);
                let builds = self.frames.pop().is_some_and(|frame| frame.builds);
                out.push_str(bracket);
                let frame = self.frame();
                frame.ended = true;
                if builds {
                    frame.owed.get_or_insert(WALKED);
                }
            }
            // What follows belongs to the operand.
            Token::Other(".") => {
                out.push('.');
                self.frame().ended = false;
            }
            Token::Other("|") => {
                let frame = self.frame();
                if std::mem::take(&mut frame.ended) {
                    charge(WALKED, out);
                }
                out.push('|');
            }
            Token::Other(operator) => self.operator(operator, out),
        }
    }

    fn operator(&mut self, operator: &str, out: &mut String) {
        let (left, right) = match operator {
            "~" => (Some(WRITTEN), Some(WRITTEN)),
            "+" => (Some(WALKED), Some(WALKED)),
            "*" => (Some(REPEATED), Some(REPEATED)),
            "==" | "!=" | "<" | ">" | "<=" | ">=" => (Some(WALKED), None),
            "in" => (Some(WALKED), Some(WALKED)),
            _ => (None, None),
        };
        let frame = self.frame();
        let binary = frame.ended;
        if let (Some(left), true) = (left, binary) {
            // One filter is enough, unless the one for texts costs more.
            if frame.owed != Some(left) {
                charge(left, out);
            }
        }
        self.flush(out);
        if binary || operator == "in" {
            self.frame().owed = right;
        }
        out.push_str(operator);
    }
}

fn charge(filter: &str, out: &mut String) {
    out.extend(["|", filter, " "]);
}
