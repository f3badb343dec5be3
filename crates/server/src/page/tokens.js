// Tokens as coloured spans.

import { h, percent, visible } from "./dom.js";

/** The colours, by the probability that the model gave a token. */
export const SHADES = [
  { from: 0.9, name: "p0", label: "≥ 90 %" },
  { from: 0.5, name: "p1", label: "50–90" },
  { from: 0.2, name: "p2", label: "20–50" },
  { from: 0.05, name: "p3", label: "5–20" },
  { from: 0.01, name: "p4", label: "1–5" },
  { from: 0, name: "p5", label: "< 1 %" },
];

/** Returns the class of a token. */
export function shade(logprob) {
  if (logprob === null) return "";
  const probability = Math.exp(logprob);
  return SHADES.find(({ from }) => probability >= from)?.name ?? "p5";
}

/** Returns the legend. */
export function legend() {
  const shades = SHADES.map(({ name, label }) => h("span", { class: `swatch ${name}` }, label));
  return h("span", { class: "legend", "aria-label": "Colours by the probability of a token" }, shades);
}

/** The spans of a branch: `leaf(start, end)` returns those of a range of its text, or of its thoughts. */
export class TokenSpans {
  constructor(branch, selected, isThoughts = false) {
    this.branch = branch;
    this.texts = branch.tokens.map(({ text, thought = 0 }) => (isThoughts ? text.slice(0, thought) : text.slice(thought)));
    // Tokens without any text are shown where the answer is.
    this.isShown = (index) => this.texts[index] !== "" || (!isThoughts && branch.tokens[index].text === "");
    this.selected = selected;
    this.starts = [];
    let at = 0;
    for (const text of this.texts) {
      this.starts.push(at);
      at += text.length;
    }
    this.length = at;
  }

  leaf(start, end) {
    const spans = [];
    const { tokens } = this.branch;
    for (let index = this.first(start); index < tokens.length && this.starts[index] < end; index++) {
      const from = this.starts[index];
      const text = this.texts[index].slice(Math.max(0, start - from), end - from);
      if (this.isShown(index) && (text || from >= start)) spans.push(this.span(index, text));
    }
    return spans;
  }

  /** Returns the first token that reaches beyond a position. */
  first(position) {
    let [low, high] = [0, this.starts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const end = this.starts[middle + 1] ?? this.length;
      if (end <= position && !(end === position && this.starts[middle] === position)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  span(index, text) {
    const token = this.branch.tokens[index];
    const forkAt = this.branch.fork?.at ?? 0;
    const names = ["token"];
    if (index < forkAt) names.push("same");
    if (index === forkAt && this.branch.fork) names.push("fork");
    if (token.isForced) names.push("forced");
    if (index === this.selected) names.push("selected");
    const share = token.logprob === null ? "" : `, ${percent(Math.exp(token.logprob))}`;
    const title = `${visible(token.text)}${share}`;
    // White space before a word is not coloured, so that lines end evenly. A part of a character has no text of its own.
    const [space] = /^[ \n]*/.exec(text);
    const rest = text.slice(space.length);
    const ink = h("span", { class: `ink ${shade(token.logprob)}` }, rest || (space ? "" : "\u2060"));
    return h("span", { class: names.join(" "), "data-index": index, title }, space, ink);
  }

  /** Returns the mark after a text that the model ended. */
  end() {
    if (this.branch.finish !== "stop") return null;
    const index = this.branch.tokens.length;
    const name = index === this.selected ? "token end selected" : "token end";
    return h("span", { class: name, "data-index": index, title: "The model ended the text here" }, "end");
  }
}
