// Builds elements. Text goes into text nodes only, so nothing that a model writes can become markup.

/** Returns an element: `h("a", { class: "x", onclick: f }, "text", element, …)`. `null` and `false` add nothing. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replaces the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
}

/** Returns a button that copies what `text` returns. */
export function copyButton(text, label) {
  const button = h("button", { type: "button", class: "quiet copy", "aria-label": label }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      // Browsers allow it only to pages of this machine or with TLS.
      button.textContent = "The browser refused";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return button;
}

/** Returns the element with an id. */
export const byId = (id) => document.getElementById(id);

/** Calls `work` once before the next frame, however often it is asked for. */
export function oncePerFrame(work) {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    // A tab in the background has no frames.
    const soon = document.hidden ? (f) => setTimeout(f, 50) : requestAnimationFrame;
    soon(() => { isAsked = false; work(); });
  };
}

const NAMES = { "\n": "↵", "\t": "⇥", "\r": "␍" };

/** Returns the text of a token with its white space visible. */
export function visible(text) {
  if (text === "") return "∅";
  return text.replace(/[\n\t\r]/g, (c) => NAMES[c]).replace(/ /g, "·");
}

/** Returns a share as a percentage with two significant digits. */
export function percent(share) {
  const value = share * 100;
  if (value === 0) return "0 %";
  if (value < 0.01) return "< 0.01 %";
  return `${value >= 99.95 ? value.toFixed(0) : value.toPrecision(value >= 10 ? 3 : 2)} %`;
}
