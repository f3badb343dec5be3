// The conversation, or the text that is continued, with its forks.

import { copyButton, h, fill } from "./dom.js";
import { markdown } from "./markdown.js";
import { legend, TokenSpans } from "./tokens.js";

const EXAMPLES = ["The old king looked at the sea, and", "Once upon a time, in a house by the river,", "“You are late,” said the clockmaker,"];

/**
 * Shows what `state` has. `actions` has what buttons do: `select(item, branch, index)`, `activate(item, branch)`, `retry(item)`,
 * `more(item)`, `edit(index, text)`, `begin(text)`, `paint(isOn)`, `compare(isOn)`.
 */
export class Conversation {
  constructor(root, state, actions) {
    Object.assign(this, { root, state, actions });
    root.addEventListener("click", (event) => this.click(event));
    root.addEventListener("keydown", (event) => this.key(event));
  }

  render() {
    const { state } = this;
    const focused = document.activeElement?.closest?.(".generated")?.id;
    this.root.classList.toggle("painted", state.isPainted);
    this.root.classList.toggle("story", state.mode === "text");
    if (!state.items.length) fill(this.root, this.welcome());
    else fill(this.root, this.tools(), state.items.map((item, at) => (item.role === "user" ? this.asked(item, at) : this.reply(item, at))));
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  welcome() {
    const { actions, state } = this;
    const isText = state.mode === "text";
    return h("div", { class: "welcome" },
      h("h2", {}, "Every token, explained"),
      h("p", {}, "This model samples its own tokens, with noise that follows from a seed. So each choice can be taken apart, repeated on any machine, and changed to see what would have come instead."),
      isText && h("p", { class: "examples" }, EXAMPLES.map((text) => h("button", { type: "button", onclick: () => actions.begin(text) }, text))));
  }

  tools() {
    const { state, actions } = this;
    const paint = h("input", { type: "checkbox", id: "paint", checked: state.isPainted });
    paint.addEventListener("change", () => actions.paint(paint.checked));
    return h("div", { class: "tools" }, h("label", {}, paint, " Colour by probability"), state.isPainted && legend());
  }

  asked(item, at) {
    if (item.isEdited) {
      const input = h("textarea", { rows: 3, "aria-label": "Your message", value: item.content });
      const save = () => this.actions.edit(at, input.value);
      input.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); save(); }
        if (event.key === "Escape") { event.stopPropagation(); this.actions.edit(at, null); }
      });
      setTimeout(() => input.focus());
      return h("div", { class: "message user" }, input, h("div", { class: "pair" },
        h("button", { type: "button", class: "main", onclick: save }, "Send"),
        h("button", { type: "button", class: "quiet", onclick: () => this.actions.edit(at, null) }, "Cancel")));
    }
    const edit = () => { item.isEdited = true; this.render(); };
    return h("div", { class: "message user" }, h("div", { class: "words" }, markdown(item.content)),
      h("div", { class: "acts" }, h("button", { type: "button", class: "quiet", onclick: edit, "aria-label": "Edit this message" }, "Edit")));
  }

  reply(item, at) {
    const { state, actions } = this;
    if (item.content !== undefined) return h("div", { class: "message reply" }, h("div", { class: "words" }, markdown(item.content)));
    const isMany = item.branches.length > 1;
    const shown = isMany && state.isCompared ? item.branches : [item.branches[item.active]];
    const tabs = isMany && h("div", { class: "tabs", role: "tablist", "aria-label": "Forks of the text" },
      item.branches.map((branch, number) => h("button", {
        type: "button", role: "tab", "aria-selected": String(number === item.active), onclick: () => actions.activate(item, number),
      }, branch.label)),
      h("span", { class: "space" }),
      h("button", { type: "button", class: "quiet", id: "compare", "aria-pressed": String(state.isCompared), onclick: () => actions.compare(!state.isCompared) }, "Side by side"));
    const active = item.branches[item.active];
    const isLast = at === state.items.length - 1;
    return h("div", { class: "message reply" }, tabs,
      h("div", { class: shown.length > 1 ? "branches several" : "branches" }, shown.map((branch) => this.branch(item, at, branch))),
      h("div", { class: "acts" },
        !active.isRunning && isLast && h("button", { type: "button", class: "quiet", id: "retry", onclick: () => actions.retry(item) }, "Retry"),
        !active.isRunning && isLast && active.finish !== "stop" && active.tokens.length > 0 && h("button", { type: "button", class: "quiet", id: "more", onclick: () => actions.more(item) }, "Continue further"),
        !active.isRunning && copyButton(() => (item.prompt ?? "") + active.text, "Copy this text"),
        h("span", { class: "small" }, this.about(active))));
  }

  about(branch) {
    const ends = { length: "", stop: ", ended by the model", stopped: ", stopped", failed: ", failed" };
    return `${branch.tokens.length} tokens, seed ${branch.settings.seed}${ends[branch.finish] ?? ""}`;
  }

  branch(item, at, branch) {
    const number = item.branches.indexOf(branch);
    const { selection } = this.state;
    const isSelected = selection && selection.item === item && selection.branch === branch;
    const spans = new TokenSpans(branch, isSelected ? selection.index : -1);
    const isText = this.state.mode === "text";
    const words = isText
      ? [h("span", { class: "given" }, item.prompt), spans.leaf(0, spans.length)]
      : markdown(branch.text, (start, end) => spans.leaf(start, end));
    const caret = branch.isRunning && h("span", { class: "caret", "aria-hidden": "true" });
    const label = isText ? "Text; arrow keys choose a token" : "Reply; arrow keys choose a token";
    const thoughts = branch.thoughtTokens > 0 && this.thoughts(branch, isSelected ? selection.index : -1);
    return h("div", { class: "column" },
      this.state.isCompared && item.branches.length > 1 && h("h3", {}, branch.label),
      h("div", { class: "generated", id: `generated-${at}-${number}`, "data-item": at, "data-branch": number, tabindex: 0, role: "group", "aria-label": label, "aria-busy": String(branch.isRunning) },
        thoughts, words, spans.end(), caret));
  }

  /** Shows thoughts, folded unless the reader opens them or one of their tokens is selected. */
  thoughts(branch, selected) {
    const count = branch.thoughtTokens;
    const isOpen = branch.showsThoughts || (selected >= 0 && selected < count);
    const spans = new TokenSpans(branch, selected, true);
    const name = branch.isRunning && branch.isThinking ? "Thinking…" : "Thoughts";
    return h("details", { class: "thoughts", open: isOpen },
      h("summary", { onclick: () => { branch.showsThoughts = !isOpen; } }, `${name} (${count} tokens)`),
      h("p", {}, spans.leaf(0, spans.length)));
  }

  place(element) {
    const generated = element.closest?.(".generated");
    if (!generated) return null;
    const item = this.state.items[Number(generated.dataset.item)];
    return { item, branch: item.branches[Number(generated.dataset.branch)] };
  }

  click(event) {
    const token = event.target.closest(".token");
    const place = token && this.place(token);
    // Who selects text to copy it does not ask about a token.
    if (!place || String(getSelection())) return;
    this.actions.select(place.item, place.branch, Number(token.dataset.index));
  }

  key(event) {
    const place = this.place(event.target);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 5, ArrowUp: -5, Home: -Infinity, End: Infinity }[event.key];
    // Buttons and folded thoughts within have keys of their own.
    if (!place || !event.target.matches(".generated") || (step === undefined && event.key !== "Enter") || event.altKey || event.ctrlKey || event.metaKey) return;
    const last = place.branch.tokens.length - (place.branch.finish === "stop" ? 0 : 1);
    if (last < 0) return;
    event.preventDefault();
    const { selection } = this.state;
    const from = selection?.branch === place.branch ? selection.index : -1;
    const index = Math.max(0, Math.min(last, from < 0 ? Math.max(0, place.branch.fork?.at ?? 0) : from + (step ?? 0)));
    this.actions.select(place.item, place.branch, index);
  }
}
