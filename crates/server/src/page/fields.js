// The settings: one table, from which the panel, requests and links are made.

import { h } from "./dom.js";

/** Settings of the sampler, with what they do. The server recommends their values. */
export const SAMPLER = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, help: "Divides the logits. 0 takes the most likely token." },
  { name: "top_k", label: "Top-k", min: 0, max: 100, step: 1, help: "Keeps this many of the likeliest tokens. 0 keeps all." },
  { name: "top_p", label: "Top-p", min: 0.01, max: 1, step: 0.01, help: "Keeps the likeliest tokens with this probability together. 1 keeps all." },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01, help: "Keeps tokens at least this likely beside the likeliest. 0 keeps all." },
  { name: "repetition_penalty", label: "Repetition", min: 0.5, max: 2, step: 0.05, help: "Divides the logits of tokens that were there before. 1 changes nothing." },
  { name: "presence_penalty", label: "Presence", min: -2, max: 2, step: 0.1, help: "Subtracted from the logits of tokens that the text has." },
  { name: "frequency_penalty", label: "Frequency", min: -2, max: 2, step: 0.1, help: "Subtracted from the logits of tokens as often as the text has them." },
];

const LENGTH = { name: "max_tokens", label: "Tokens", min: 1, max: 500, step: 1, help: "The most tokens of a text." };

/** Returns only the settings of the sampler. */
export function samplerOf(settings) {
  return Object.fromEntries(SAMPLER.map(({ name }) => [name, settings[name]]));
}

/** Describes how settings differ from others: `temperature 1.2, top-k 5`. */
export function difference(settings, from) {
  const changed = SAMPLER.filter(({ name }) => settings[name] !== from[name]);
  return changed.map(({ name, label }) => `${label.toLowerCase()} ${settings[name]}`).join(", ");
}

/** Returns a random seed; seeds count modulo 2^32. */
export function randomSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}

/** The panel of settings. */
export class Fields {
  constructor(onChange) {
    this.onChange = onChange;
    this.inputs = {};
    this.recommended = {};
  }

  /** Makes the panel for a model. */
  build(model) {
    this.recommended = { ...model.recommended, max_tokens: Math.min(160, model.context_length) };
    const isPenalty = ({ name }) => name.endsWith("_penalty");
    const rows = [
      [...SAMPLER.filter((field) => !isPenalty(field)), LENGTH].map((field) => this.row(field)),
      h("p", { class: "group" }, "Penalties"),
      SAMPLER.filter(isPenalty).map((field) => this.row(field)),
    ];
    this.seed = h("input", { id: "seed", type: "number", min: 0, max: 4294967295, step: 1, placeholder: "random", title: "The same seed gives the same text" });
    this.seed.addEventListener("input", () => this.onChange());
    const dice = h("button", { type: "button", class: "quiet", title: "Choose a seed", "aria-label": "Choose a random seed", onclick: () => { this.seed.value = randomSeed(); this.onChange(); } }, "⚄");
    const seed = h("div", { class: "field" }, h("label", { for: "seed" }, "Seed"), h("span", { class: "pair" }, this.seed, dice));
    this.system = h("textarea", { id: "system", rows: 3, placeholder: "None" });
    this.systemRow = h("div", { class: "field tall" }, h("label", { for: "system" }, "System prompt"), this.system);
    const reset = h("button", { type: "button", class: "quiet wide", onclick: () => { this.set(this.recommended); this.seed.value = ""; this.onChange(); } }, "Recommended values");
    return [this.systemRow, seed, rows, reset];
  }

  row(field) {
    const { name, label, min, max, step, help } = field;
    const attributes = { min, max, step, title: help, value: this.recommended[name] };
    const number = h("input", { id: name, type: "number", ...attributes, max: null, step: "any" });
    const slider = h("input", { type: "range", ...attributes, "aria-label": `${label}, slider` });
    number.addEventListener("input", () => { slider.value = number.value; this.onChange(); });
    slider.addEventListener("input", () => { number.value = slider.value; this.onChange(); });
    this.inputs[name] = { number, slider };
    return h("div", { class: "field" }, h("label", { for: name, title: help }, label), number, slider);
  }

  /** Shows settings. */
  set(settings) {
    for (const [name, { number, slider }] of Object.entries(this.inputs)) {
      if (settings[name] === undefined) continue;
      number.value = settings[name];
      slider.value = settings[name];
    }
    if (settings.seed !== undefined) this.seed.value = settings.seed;
  }

  /** Returns what is set; a seed is chosen if there is none. */
  get() {
    const value = (name) => {
      const number = this.inputs[name].number.valueAsNumber;
      return Number.isNaN(number) ? this.recommended[name] : number;
    };
    const settings = Object.fromEntries(Object.keys(this.inputs).map((name) => [name, value(name)]));
    settings.top_k = Math.round(settings.top_k);
    settings.max_tokens = Math.max(1, Math.round(settings.max_tokens));
    const seed = this.seed.valueAsNumber;
    return { ...settings, seed: Number.isInteger(seed) ? seed : randomSeed() };
  }
}
