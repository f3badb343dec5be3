//! Continues a text with the included model: `cargo run --release --example story`.

use std::io::Write;

fn main() -> Result<(), ptero::Error> {
    let model = ptero::Model::included()?;
    let mut generator = model.generator().temperature(0.8).seed(42).max_tokens(100).start()?;
    for piece in generator.generate("Once upon a time")? {
        print!("{}", piece?);
        // Shows the text as it is made; a closed pipe is not worth an error here.
        let _ = std::io::stdout().flush();
    }
    println!();
    Ok(())
}
