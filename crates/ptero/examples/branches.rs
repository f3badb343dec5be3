//! Reads a prompt once and continues it in three ways, on threads of their own: `cargo run --release --example branches`.

fn main() -> Result<(), ptero::Error> {
    let model = ptero::Model::included()?;
    let mut trunk = model.generator().temperature(1.0).seed(1).max_tokens(1).start()?;
    let prompt = "The old king had three daughters, and";
    trunk.generate(prompt)?.text()?;
    let texts = std::thread::scope(|scope| {
        let branches: Vec<_> = (0..3).map(|_| trunk.fork()).collect::<Result<_, _>>()?;
        let continued: Vec<_> = branches
            .into_iter()
            .zip([10, 20, 30])
            .map(|(mut branch, seed)| {
                branch.set_seed(seed);
                branch.set_max_tokens(40);
                scope.spawn(move || branch.generate(prompt)?.text())
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<String, ptero::Error>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        continued.into_iter().map(join).collect::<Result<Vec<_>, ptero::Error>>()
    })?;
    for text in texts {
        println!("{prompt}{text}\n");
    }
    Ok(())
}
