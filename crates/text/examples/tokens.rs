//! Tokens of texts: `tokens TOKENIZER.JSON [TOKENIZER_CONFIG.JSON]` reads a JSON string per line, and answers with the ids
//! without and with special tokens, the text of the latter again, and whether pieces give the same.

use ptero_text::{Limits, Tokenizer};
use std::io::{BufRead, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files: Vec<Vec<u8>> = std::env::args().skip(1).map(std::fs::read).collect::<Result<_, _>>()?;
    let file = files.first().ok_or("usage: tokens TOKENIZER.JSON [TOKENIZER_CONFIG.JSON]")?;
    let tokenizer = Tokenizer::from_json(file, files.get(1).map(Vec::as_slice), &Limits::default())?;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let text: String = serde_json::from_str(&line?)?;
        let (plain, special) = (tokenizer.encode(&text, false)?, tokenizer.encode(&text, true)?);
        let decoded = tokenizer.decode(&plain, false);
        writeln!(out, "{}", serde_json::json!({"plain": plain, "special": special, "text": decoded}))?;
    }
    Ok(())
}
