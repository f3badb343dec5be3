//! Texts that continue a prompt.

use crate::error::Result;
use crate::grammar::GrammarFilter;
use crate::model::Model;
use crate::pieces::Pieces;
use crate::settings::{Settings, setters};
use crate::text::{Text, Turn};
use ptero_engine::{SampleOptions, Session, StopFlag, TokenId, TokenSettings};
use ptero_sampling::adjust::Adjustments;
use ptero_sampling::explain::{Explanation, explain};
use ptero_sampling::noise::{Stream, mix, seed_key};
use ptero_text::StopScanner;

/// The length of a text that has no end of its own, if no other is given.
pub const DEFAULT_MAX_TOKENS: usize = 256;

/// Settings of a [`Generator`]; [`Model::generator`] makes one.
#[derive(Clone, Debug)]
pub struct GeneratorBuilder {
    pub(crate) model: Model,
    pub(crate) settings: Settings,
}

setters!(GeneratorBuilder);

impl GeneratorBuilder {
    pub(crate) fn new(model: Model) -> Self {
        Self { model, settings: Settings::default() }
    }

    /// Checks the settings without starting a session.
    ///
    /// # Errors
    /// When a setting is invalid or the program does not support it.
    pub fn check(&self) -> Result<()> {
        checked_options(&self.model, &self.settings)?;
        self.model.engine().check_biases(&self.settings.logit_bias)?;
        self.settings.grammar.as_ref().map_or(Ok(()), |grammar| grammar.filter(&self.model).map(drop))
    }

    /// Returns how the first token of a text is sampled: as it was asked for, else as the model's makers recommend. Token `i` has the
    /// same settings and `i` more than the seed.
    ///
    /// # Errors
    /// When a setting is invalid or the program does not support it.
    pub fn token_settings(&self) -> Result<TokenSettings> {
        Ok(checked_options(&self.model, &self.settings)?.schedule(self.model.engine())?.at_step(0))
    }

    /// Explains which token follows `tokens` with these settings and this seed, and why. `logits` are those after the tokens, of which
    /// the text has those from `text_start` on. Grammars are not taken into account.
    ///
    /// ```
    /// let model = ptero::Options::new().full_sampler(true).included_model()?;
    /// let tokens = model.encode("Once upon a")?;
    /// let mut session = model.session()?;
    /// let settings = model.generator().seed(7);
    /// let drawn = session.prefill(&tokens, &settings.token_settings()?)?;
    /// let logits = session.fetch_logits()?.unwrap();
    /// let explanation = settings.explain(&tokens, tokens.len(), &logits, 5, &[])?;
    /// assert_eq!(explanation.winner, drawn as usize);
    /// # Ok::<(), ptero::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a setting is invalid or the program does not support it.
    pub fn explain(
        &self,
        tokens: &[TokenId],
        text_start: usize,
        logits: &[f32],
        count: usize,
        also: &[TokenId],
    ) -> Result<Explanation> {
        let TokenSettings { settings, penalties, seed, .. } = self.token_settings()?;
        // Tokens outside the vocabulary change nothing.
        let int = |token: TokenId| i32::try_from(token).unwrap_or(-1);
        let history: Vec<i32> = tokens.iter().map(|token| int(*token)).collect();
        let biases = self.model.engine().check_biases(&self.settings.logit_bias)?;
        let adjustments =
            Adjustments { penalties, history: &history, prompt_end: text_start, biases: &biases, mask: &[] };
        let stream = Stream::of_row(seed_key(seed), logits.len());
        let also: Vec<usize> = also.iter().filter_map(|token| usize::try_from(*token).ok()).collect();
        Ok(explain(logits, &adjustments, &settings, &stream, count, &also))
    }

    /// Checks the settings and starts a session.
    ///
    /// # Errors
    /// When a setting is invalid or the program does not support it, or there is no memory for the state.
    pub fn start(self) -> Result<Generator> {
        Generator::new(self.model, &self.settings, DEFAULT_MAX_TOKENS)
    }
}

/// Fills in defaults, and refuses invalid settings before the first text.
pub(crate) fn checked_options(model: &Model, settings: &Settings) -> Result<SampleOptions> {
    StopScanner::new(&settings.stop)?;
    settings.sample_options(&model.format().generation, model.engine())
}

/// Generates texts, one after the other. What the prompt of a text shares with the text before it is not processed again. The
/// seeds of a text continue where those of the last one ended.
///
/// ```
/// let model = ptero::Model::included()?;
/// let mut generator = model.generator().seed(7).max_tokens(4).start()?;
/// let text = generator.generate("The king")?.text()?;
/// let mut same = model.generator().seed(7).max_tokens(4).start()?;
/// assert_eq!(same.generate("The king")?.text()?, text);
///
/// let flag = generator.stop_flag(); // may be sent to another thread
/// flag.stop();
/// assert_eq!(generator.generate("The king")?.text()?, "");
/// # Ok::<(), ptero::Error>(())
/// ```
#[derive(Debug)]
pub struct Generator {
    model: Model,
    session: Session,
    options: SampleOptions,
    max_tokens: usize,
    stop: Vec<String>,
    shown: Vec<String>,
    /// The grammar of every text, at its start.
    grammar: Option<GrammarFilter>,
    /// That of the current text.
    filter: Option<GrammarFilter>,
}

impl Generator {
    pub(crate) fn new(model: Model, settings: &Settings, default_max_tokens: usize) -> Result<Self> {
        let options = checked_options(&model, settings)?;
        let grammar = settings.grammar.as_ref().map(|grammar| grammar.filter(&model)).transpose()?;
        let mut session = model.session()?;
        session.ignore_ends(settings.ignore_eos);
        session.set_logit_bias(&settings.logit_bias)?;
        let max_tokens = settings.max_tokens.unwrap_or(default_max_tokens);
        let (stop, shown, filter) = (settings.stops(&model.format().generation), settings.shown.clone(), None);
        Ok(Self { model, session, options, max_tokens, stop, shown, grammar, filter })
    }

    /// Continues a prompt as it is.
    ///
    /// # Errors
    /// When the model has no tokenizer, the prompt is empty or leaves no room in the context, before anything runs.
    pub fn generate(&mut self, prompt: &str) -> Result<Text<'_>> {
        let prompt = self.model.encode(prompt)?;
        self.generate_tokens(&prompt)
    }

    /// Continues a prompt of tokens.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, the prompt is empty or leaves no room in the context, before anything runs.
    pub fn generate_tokens(&mut self, prompt: &[TokenId]) -> Result<Text<'_>> {
        self.text(prompt, None)
    }

    /// Continues a prompt; in a turn of a conversation, the text becomes its reply.
    pub(crate) fn text<'a>(&'a mut self, prompt: &[TokenId], turn: Option<Turn<'a>>) -> Result<Text<'a>> {
        let Self { model, session, options, max_tokens, stop, shown, grammar, filter } = self;
        filter.clone_from(grammar);
        let pieces = Pieces::new(model, prompt, stop, shown)?;
        let (kept, sampling) = (session.keep_prefix(prompt), *options);
        let generation = kept.and_then(|kept| {
            let generation = session.generate(prompt.get(kept..).unwrap_or(prompt), &sampling, *max_tokens)?;
            match filter {
                Some(filter) => generation.with_filter(filter),
                None => Ok(generation),
            }
        });
        match generation {
            Ok(generation) => Ok(Text::new(generation, pieces, &mut options.seed, turn)),
            Err(error) => {
                turn.into_iter().for_each(Turn::cancel);
                Err(error.into())
            }
        }
    }

    /// Processes a prompt and returns a generator for one of several texts that continue it: number 0 gives the text that
    /// [`Generator::generate_tokens`] would give, the others have seeds of their own, which follow from the seed and the number.
    /// The stop flag of this generator stops it, too.
    ///
    /// ```
    /// let model = ptero::Model::included()?;
    /// let mut generator = model.generator().seed(7).max_tokens(4).start()?;
    /// let prompt = model.encode("The king")?;
    /// for number in 0..3 {
    ///     println!("{}", generator.choice(&prompt, number)?.generate_tokens(&prompt)?.text()?);
    /// }
    /// # Ok::<(), ptero::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Generator::generate_tokens`] and [`Generator::fork`].
    pub fn choice(&mut self, prompt: &[TokenId], number: u32) -> Result<Self> {
        // The last token is processed by each text for itself, since that draws its first token.
        if let Some((_last, shared)) = prompt.split_last() {
            let kept = self.session.keep_prefix(prompt)?;
            if let Some(rest) = shared.get(kept..).filter(|rest| !rest.is_empty()) {
                self.session.prefill(rest, &TokenSettings::GREEDY)?;
            }
        }
        let mut choice = self.fork()?;
        choice.session.set_stop_flag(self.session.stop_flag());
        choice.options.seed = self.options.seed.map(|seed| mix(seed, number));
        Ok(choice)
    }

    /// Copies the generator with everything that it has processed. From then on the two share nothing that changes.
    ///
    /// # Errors
    /// When there is no memory for the state, or the device cannot copy states.
    pub fn fork(&self) -> Result<Self> {
        let session = self.session.fork()?;
        let (model, stop, shown) = (self.model.clone(), self.stop.clone(), self.shown.clone());
        let Self { options, max_tokens, .. } = *self;
        Ok(Self { model, session, options, max_tokens, stop, shown, grammar: self.grammar.clone(), filter: None })
    }

    /// Forgets what was processed.
    ///
    /// # Errors
    /// When the device fails.
    pub fn reset(&mut self) -> Result<()> {
        Ok(self.session.reset()?)
    }

    /// Sets the seed of the next text.
    pub fn set_seed(&mut self, seed: i64) {
        // A program without a seed keeps none.
        self.options.seed = self.options.seed.map(|_| seed);
    }

    /// Sets the number of tokens of the next texts, at most.
    pub fn set_max_tokens(&mut self, max_tokens: usize) {
        self.max_tokens = max_tokens;
    }

    /// Returns the flag that stops a text from another thread. Clear it before the next text.
    pub fn stop_flag(&self) -> StopFlag {
        self.session.stop_flag()
    }

    /// Returns the settings of the next text: defaults filled in, and the seed of its first token.
    pub fn options(&self) -> &SampleOptions {
        &self.options
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.model
    }
}
