//! Asks a model a question: `cargo run --release --example chat -- smol.pte "Why is the sky blue?"`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let model = ptero::Model::open(arguments.next().ok_or("which model?")?)?;
    let mut chat = model.chat().system("Be brief.").temperature(0.7).seed(42).start()?;
    for question in arguments {
        for piece in chat.send(&question)? {
            print!("{}", piece?);
        }
        println!();
    }
    Ok(())
}
