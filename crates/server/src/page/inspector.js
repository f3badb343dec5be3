// The sampler, made visible: why a token was drawn, and what if it had not been.

import { h, fill, percent, visible } from "./dom.js";
import { difference, samplerOf } from "./fields.js";

const FILTERS = { excluded: "excluded", top_k: "top-k", top_p: "top-p", min_p: "min-p" };

const number = (value) => (value === null ? "−∞" : value.toFixed(2).replace("-", "−"));
const nameOf = (candidate) => (candidate.is_end ? "end of text" : visible(candidate.text));

/** The panel of a token. `actions` has `fork(index, change)`, `close()` and `settings()`. */
export class Inspector {
  constructor(panel, actions) {
    this.panel = panel;
    this.actions = actions;
    this.asking = null;
    this.clear();
  }

  /** Shows what the panel is for. */
  clear() {
    this.asking?.abort();
    this.panel.classList.remove("open");
    fill(this.panel,
      h("h2", {}, "The sampler"),
      h("p", { class: "lead" }, "Click a token, or walk through the text with the arrow keys, to see why it was drawn."),
      h("ol", { class: "steps" },
        h("li", {}, h("b", {}, "The model"), " gives each token of its vocabulary a logit."),
        h("li", {}, h("b", {}, "Filters"), " (top-k, top-p, min-p) drop the unlikely ones."),
        h("li", {}, h("b", {}, "Noise"), " that follows from the seed is added to what is left."),
        h("li", {}, h("b", {}, "The largest sum"), " wins.")),
      h("p", {}, "The noise is known, so every choice can be explained exactly, repeated, and changed."));
  }

  /** Shows the token of an index. */
  async show(model, branch, index) {
    this.asking?.abort();
    const asking = new AbortController();
    this.asking = asking;
    this.panel.classList.add("open");
    if (!this.panel.querySelector(".candidates")) fill(this.panel, this.head(branch, index), h("p", { class: "waiting" }, "…"));
    try {
      const found = await branch.explain(model, index, asking.signal);
      if (this.asking === asking) fill(this.panel, this.head(branch, index), this.explanation(branch, index, found));
    } catch (error) {
      if (!asking.signal.aborted) fill(this.panel, this.head(branch, index), h("p", { class: "wrong" }, error.message));
    }
  }

  /** Shows what a fork with the settings of the page would change. */
  refresh() {
    this.panel.querySelector("#fork-settings")?.replaceWith(this.bySettings());
  }

  head(branch, index) {
    const token = branch.tokens[index];
    const name = token ? visible(token.text) : "end of text";
    return h("div", { class: "head" },
      h("h2", {}, "Token ", index + 1, ": ", h("code", {}, name)),
      h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => this.actions.close() }, "✕"));
  }

  explanation(branch, index, found) {
    const { candidates, winner } = found;
    const token = branch.tokens[index];
    const won = candidates.find((candidate) => candidate.token === winner);
    const shown = candidates.find((candidate) => candidate.token === token?.id) ?? won;
    const rivals = candidates.filter((candidate) => candidate.dropped_by === null && candidate !== won);
    const next = rivals.reduce((best, one) => (best && best.score >= one.score ? best : one), null);
    return [
      this.verdict(found, token, won, shown, next),
      this.funnel(found),
      this.table(branch, index, found, shown),
      this.whatIf(branch, index, found),
    ];
  }

  verdict(found, token, won, shown, next) {
    const isGreedy = found.settings.temperature === 0;
    const parts = [];
    if (token?.isForced) {
      parts.push("You chose this token. The sampler would have drawn ", h("code", {}, nameOf(won)), ". ");
    } else if (token && won.token !== token.id) {
      parts.push(h("b", {}, "This text was not drawn by this model: "), "it would have drawn ", h("code", {}, nameOf(won)), ". ");
    }
    const chance = shown.logprob === null ? 0 : Math.exp(shown.logprob);
    parts.push("The model gave ", h("code", {}, nameOf(shown)), " ", h("b", {}, percent(chance)), "; ");
    if (isGreedy) {
      parts.push("at temperature 0 the largest logit wins.");
    } else if (shown.dropped_by) {
      parts.push(FILTERS[shown.dropped_by], " dropped it.");
    } else {
      parts.push("after temperature and filters it had ", h("b", {}, percent(shown.probability)), ". ");
      if (shown === won) parts.push("It won with ", sum(won), next ? [", before ", h("code", {}, nameOf(next)), " with ", number(next.score)] : ", alone", ".");
      else parts.push("Its sum was ", sum(shown), ", and ", h("code", {}, nameOf(won)), " had ", number(won.score), ".");
    }
    return h("p", { class: "verdict", "aria-live": "polite" }, parts);
  }

  /** What each filter leaves of the vocabulary. */
  funnel({ vocabulary, left, settings }) {
    const stages = [
      ["vocabulary", vocabulary, null],
      ["top-k", left.top_k, settings.top_k === 0 ? "off" : settings.top_k],
      ["top-p", left.top_p, settings.top_p === 1 ? "off" : settings.top_p],
      ["min-p", left.min_p, settings.min_p === 0 ? "off" : settings.min_p],
    ];
    const most = Math.log(vocabulary + 1);
    return h("ol", { class: "funnel", "aria-label": "Tokens left after each filter" }, stages.map(([name, count, value]) => {
      const bar = h("span", { class: "level" });
      bar.style.height = `${Math.max(4, (100 * Math.log(count + 1)) / most)}%`;
      return h("li", { class: value === "off" ? "off" : null, title: "Tokens as likely as the last one that is kept are kept, too" }, h("span", { class: "well" }, bar), h("b", {}, count), h("span", {}, name, value === null ? "" : ` ${value}`));
    }));
  }

  table(branch, index, found, shown) {
    const { candidates, winner, settings } = found;
    const temperature = settings.temperature || 1;
    const base = (one) => (one.adjusted_logit === null ? null : one.adjusted_logit / temperature);
    const finite = candidates.filter((one) => one.score !== null && one.adjusted_logit !== null);
    const ends = finite.flatMap((one) => [base(one), one.score]);
    const [low, high] = [Math.min(...ends), Math.max(...ends)];
    const floor = low - 0.06 * (high - low || 1);
    const at = (value) => (100 * (value - floor)) / (high - floor || 1);
    const largest = Math.max(...candidates.flatMap((one) => [one.logprob === null ? 0 : Math.exp(one.logprob), one.probability]));
    const rows = [];
    let previous = null;
    let rank = -1;
    for (const one of candidates) {
      const skipped = one.rank - rank - 1;
      if (skipped > 0) rows.push(h("tr", { class: "gap" }, h("td", { colspan: 4 }, `${skipped} more`)));
      rank = one.rank;
      if (one.dropped_by && one.dropped_by !== previous) {
        rows.push(h("tr", { class: "cut" }, h("td", { colspan: 4 }, h("span", {}, `${FILTERS[one.dropped_by]} cuts here`))));
      }
      previous = one.dropped_by;
      const names = [one.token === winner ? "winner" : null, one === shown ? "shown" : null, one.dropped_by ? "dropped" : null];
      rows.push(h("tr", { class: names.filter(Boolean).join(" "), "data-token": one.token },
        h("th", { scope: "row" }, this.rival(branch, index, one, shown)),
        h("td", { class: "shares" }, bars(one, largest)),
        h("td", { class: "sum" }, one.score === null ? "−∞" : race(one, at, base(one))),
        h("td", { class: "value" }, one.dropped_by ? h("span", { class: "badge" }, FILTERS[one.dropped_by]) : number(one.score))));
    }
    return h("table", { class: "candidates" },
      h("caption", { class: "hidden" }, "The likeliest tokens"),
      h("thead", {}, h("tr", {}, ["token", "probability", settings.temperature === 0 ? "logit" : "logit ÷ temperature + noise", "sum"].map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, rows),
      h("tfoot", {}, h("tr", {}, h("td", { colspan: 4 },
        h("span", { class: "key model" }), "the model's ", h("span", { class: "key drawn" }), "to be drawn ",
        h("span", { class: "key plus" }), "noise adds ", h("span", { class: "key minus" }), "noise takes"))));
  }

  /** A token, as a button that continues the text with it. */
  rival(branch, index, one, shown) {
    const name = nameOf(one);
    if (one === shown || one.is_end) return h("code", { title: `token ${one.token}` }, name);
    const change = { token: { id: one.token, text: one.text, logprob: one.logprob } };
    return h("button", { type: "button", class: "rival", title: `What if it had been ${name}?`, "aria-label": `Continue with ${name} instead`, onclick: () => this.actions.fork(index, change, name) }, h("code", {}, name), h("span", { "aria-hidden": "true" }, "↪"));
  }

  whatIf(branch, index, found) {
    const { settings } = branch.drawOf(index);
    const seed = h("input", { type: "number", min: 0, max: 4294967295, step: 1, "aria-label": "Another seed", placeholder: "random" });
    const bySeed = () => this.actions.fork(index, { seed: Number.isInteger(seed.valueAsNumber) ? seed.valueAsNumber : undefined, isOtherSeed: true });
    this.bySettings = () => {
      const wanted = this.actions.settings();
      const changed = difference(wanted, settings);
      return h("button", { type: "button", class: "quiet", id: "fork-settings", disabled: !changed, onclick: () => this.actions.fork(index, { settings: samplerOf(wanted) }, changed) },
        changed ? `Continue with ${changed}` : "Change a setting to continue with it");
    };
    return h("section", { class: "what-if", "aria-label": "What if" },
      h("h3", {}, "What if …"),
      h("p", {}, "… it had been another token? Choose one above."),
      h("p", {}, "… the noise from here on were another?"),
      h("div", { class: "pair" }, seed, h("button", { type: "button", class: "quiet", id: "fork-seed", onclick: bySeed }, "Continue with this seed")),
      h("p", {}, "… the settings were others?"),
      this.bySettings(),
      h("p", { class: "small" }, `Seed of this token: ${found.seed}. Position ${found.position}. Id ${branch.tokens[index]?.id ?? found.winner}.`));
  }
}

const sum = (one) => h("span", { class: "nowrap" }, `${number(one.score - (one.noise ?? 0))} ${one.noise !== null && one.noise < 0 ? "−" : "+"} ${number(Math.abs(one.noise ?? 0))} = `, h("b", {}, number(one.score)));

/** Two bars: the model's probability, and that of being drawn. */
function bars(one, largest) {
  const share = one.logprob === null ? 0 : Math.exp(one.logprob);
  const bar = (name, value) => {
    const element = h("span", { class: name });
    element.style.width = `${(100 * value) / (largest || 1)}%`;
    return element;
  };
  const title = `${percent(share)} by the model, ${percent(one.probability)} after temperature and filters`;
  return h("div", { class: "bars", title }, h("span", { class: "track" }, bar("model", share), bar("drawn", one.probability)), h("span", { class: "share" }, percent(share)));
}

/** The sum as a bar: up to the scaled logit, and the noise from there on. */
function race(one, at, base) {
  const from = at(base);
  const to = at(one.score);
  const logit = h("span", { class: "logit" });
  logit.style.width = `${Math.min(from, to)}%`;
  const noise = h("span", { class: to >= from ? "plus" : "minus" });
  noise.style.left = `${Math.min(from, to)}%`;
  noise.style.width = `${Math.abs(to - from)}%`;
  const title = `${number(base)} ${one.noise < 0 ? "−" : "+"} ${number(Math.abs(one.noise ?? 0))} = ${number(one.score)}`;
  return h("div", { class: "race", title }, logit, noise);
}
