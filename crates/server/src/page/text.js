// Texts that are generated, token by token, and their forks.

import { stream, explain } from "./api.js";
import { samplerOf } from "./fields.js";

/** Ends thoughts where the server does not tell them from the answer: in texts that are continued by their tokens. */
const THOUGHTS_END = "</think>";

/**
 * A text, or what it would be if a choice had been another.
 * Token `i` is drawn with `seed + i`, so a fork that keeps the seed keeps all later noise, too.
 */
export class Branch {
  constructor({ settings, label, parent = null, tokens = [], promptIds = null, fork = null }) {
    Object.assign(this, { settings, label, parent, tokens, promptIds, fork });
    this.finish = null;
    this.fingerprint = null;
    this.isRunning = false;
    this.isThinking = false;
  }

  /** Returns the text so far, without thoughts. */
  get text() {
    return this.tokens.map(({ text, thought = 0 }) => text.slice(thought)).join("");
  }

  /** Returns the number of tokens up to the end of the thoughts. */
  get thoughtTokens() {
    return this.tokens.findLastIndex(({ thought }) => thought > 0) + 1;
  }

  /** Returns what draws the token of an index. */
  drawOf(index) {
    const token = this.tokens[index];
    return token?.settings ? { seed: token.seed, settings: token.settings } : { seed: this.settings.seed + index, settings: this.settings };
  }

  /** Returns the forks that lead from the first text to this one, oldest first. */
  get forks() {
    return this.parent ? [...this.parent.forks, this.fork] : [];
  }

  /** Returns the branch that was forked first. */
  get root() {
    return this.parent ? this.parent.root : this;
  }

  /** Adds what an event of a stream tells. */
  take(event) {
    this.fingerprint ??= event.system_fingerprint;
    const choice = event.choices[0];
    this.promptIds ??= event.prompt_token_ids ?? choice?.prompt_token_ids ?? null;
    if (!choice) return;
    const { thought, text } = this.read(choice);
    const logprob = choice.logprobs?.content?.[0]?.logprob ?? choice.logprobs?.token_logprobs?.[0] ?? null;
    const id = choice.token_ids?.[0];
    if (id !== undefined) this.add({ id, text: thought + text, thought: thought.length, logprob });
    else if (this.tokens.length) {
      // What was held back at the end, or comes after thoughts, belongs to the last token.
      const last = this.tokens.at(-1);
      last.text += thought + text;
      last.thought += thought.length;
    }
    if (choice.finish_reason) this.finish = choice.finish_reason;
  }

  /** Tells thoughts and answer apart. */
  read(choice) {
    const thought = choice.delta?.reasoning_content ?? "";
    const text = choice.delta?.content ?? choice.text ?? "";
    if (choice.text === undefined || !this.isThinking) {
      this.isThinking = (this.isThinking || thought !== "") && text === "";
      return { thought, text };
    }
    const end = text.indexOf(THOUGHTS_END);
    if (end < 0) return { thought: text, text: "" };
    this.isThinking = false;
    return { thought: text.slice(0, end), text: text.slice(end + THOUGHTS_END.length) };
  }

  add(token) {
    const index = this.tokens.length;
    this.tokens.push({ seed: this.settings.seed + index, settings: this.settings, ...token });
  }

  /** Returns the tokens before an index, with those of the prompt. */
  before(index) {
    return [...this.promptIds, ...this.tokens.slice(0, index).map((token) => token.id)];
  }

  /** Asks why the token of an index was drawn. */
  async explain(model, index, signal) {
    const { seed, settings } = this.drawOf(index);
    const token = this.tokens[index]?.id;
    const asked = { model, prompt: this.before(index), text_start: this.promptIds.length, seed, count: 12, ...samplerOf(settings) };
    return explain(token === undefined ? asked : { ...asked, token }, signal);
  }

  /** Returns a fork at an index: with another token there, another seed, or other settings from there on. */
  forkAt({ at, token, seed, settings }, label) {
    const kept = this.tokens.slice(0, at);
    const fork = new Branch({
      settings: { ...settings, seed },
      label,
      parent: this,
      tokens: kept,
      promptIds: this.promptIds,
      fork: { at, seed, settings, ...(token ? { token } : {}) },
    });
    fork.fingerprint = this.fingerprint;
    fork.isThinking = at < this.thoughtTokens;
    // Who forks thoughts wants to see what becomes of them.
    fork.showsThoughts = this.showsThoughts || fork.isThinking;
    // Nobody drew it, but what would have been drawn in its place can be explained.
    if (token) fork.add({ id: token.id, text: token.text, thought: fork.isThinking ? token.text.length : 0, logprob: token.logprob ?? null, isForced: true });
    return fork;
  }

  /**
   * Generates until the text ends or has as many tokens as its settings allow. `asked` is a conversation or a text; a branch that
   * has tokens continues after them.
   */
  async run(model, asked, onToken, signal) {
    const { seed, max_tokens } = this.settings;
    const count = this.tokens.length;
    const shared = { model, return_token_ids: true, ...samplerOf(this.settings), seed: seed + count, max_tokens: max_tokens - count };
    if (shared.max_tokens < 1) return;
    this.isRunning = true;
    this.finish = null;
    const take = (event) => { this.take(event); onToken(); };
    try {
      if (this.promptIds) {
        await stream("v1/completions", { ...shared, prompt: this.before(count), text_start: this.promptIds.length, logprobs: 0 }, take, signal);
      } else if (asked.messages) {
        await stream("v1/chat/completions", { ...shared, messages: asked.messages, logprobs: true }, take, signal);
      } else {
        await stream("v1/completions", { ...shared, prompt: asked.prompt, logprobs: 0 }, take, signal);
      }
    } catch (error) {
      this.finish = signal.aborted ? "stopped" : "failed";
      if (!signal.aborted) throw error;
    } finally {
      this.isRunning = false;
      onToken();
    }
  }
}
