// A small Markdown: headings, paragraphs, lists, quotes, code, rules; emphasis, code and links within lines.
//
// It builds nodes, never markup from text, and asks `leaf(start, end)` for the nodes of a range of the source, so that a caller can
// make each token of it a span. HTML is text here. Images are not loaded: their source is shown.

import { copyButton, h } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])[ \t]+/;
const QUOTE = /^ {0,3}> ?/;
/** Lists and quotes that are nested more deeply are paragraphs. */
const DEEPEST = 8;
/** What links may begin with; a link to anything else, such as `javascript:`, is text. */
const SAFE = /^(?:https?:\/\/|mailto:)/i;

/** Returns the nodes of a source. */
export function markdown(source, leaf = (start, end) => [document.createTextNode(source.slice(start, end))]) {
  const lines = [];
  let at = 0;
  for (const text of source.split("\n")) {
    lines.push({ start: at, end: at + text.length });
    at += text.length + 1;
  }
  return new Blocks(source, leaf).parse(lines, 0);
}

class Blocks {
  constructor(source, leaf) {
    this.source = source;
    this.leaf = leaf;
  }

  text(line) {
    return this.source.slice(line.start, line.end);
  }

  parse(lines, depth) {
    const nodes = [];
    let at = 0;
    while (at < lines.length) {
      const text = this.text(lines[at]);
      if (text.trim() === "") at++;
      else if (FENCE.test(text)) at = this.fence(lines, at, nodes);
      else if (HEADING.test(text)) at = this.heading(lines, at, nodes);
      else if (RULE.test(text)) { nodes.push(h("hr")); at++; }
      else if (depth < DEEPEST && QUOTE.test(text)) at = this.quote(lines, at, nodes, depth);
      else if (depth < DEEPEST && ITEM.test(text)) at = this.list(lines, at, nodes, depth);
      else at = this.paragraph(lines, at, nodes, depth);
    }
    return nodes;
  }

  fence(lines, at, nodes) {
    const [, mark, about] = FENCE.exec(this.text(lines[at]));
    const closes = (line) => {
      const text = this.text(line).trim();
      return text.length >= mark.length && text === mark[0].repeat(text.length);
    };
    let end = at + 1;
    while (end < lines.length && !closes(lines[end])) end++;
    const inner = lines.slice(at + 1, end);
    // Lines that were cut from a quote or a list are not neighbours in the source.
    const code = inner.map((line, index) => [index > 0 ? "\n" : null, this.leaf(line.start, line.end)]);
    const language = about.trim().split(/\s/)[0];
    const source = () => inner.map((line) => this.text(line)).join("\n");
    nodes.push(h("pre", { "data-language": language || null }, copyButton(source, "Copy this code"), h("code", {}, code)));
    return end + 1;
  }

  heading(lines, at, nodes) {
    const [all, marks] = HEADING.exec(this.text(lines[at]));
    const { start, end } = lines[at];
    // The page has headings of its own.
    nodes.push(h(`h${Math.min(6, marks.length + 2)}`, {}, this.inline(start + all.length, end)));
    return at + 1;
  }

  quote(lines, at, nodes, depth) {
    const inner = [];
    for (; at < lines.length; at++) {
      const found = QUOTE.exec(this.text(lines[at]));
      if (!found) break;
      inner.push({ start: lines[at].start + found[0].length, end: lines[at].end });
    }
    nodes.push(h("blockquote", {}, this.parse(inner, depth + 1)));
    return at;
  }

  list(lines, at, nodes, depth) {
    const [, indent, first] = ITEM.exec(this.text(lines[at]));
    const isOrdered = /\d/.test(first);
    const list = h(isOrdered ? "ol" : "ul", { start: isOrdered ? parseInt(first, 10) : null });
    while (at < lines.length) {
      const found = ITEM.exec(this.text(lines[at]));
      if (!found || found[1].length !== indent.length || /\d/.test(found[2]) !== isOrdered) break;
      const inner = [{ start: lines[at].start + found[0].length, end: lines[at].end }];
      for (at++; at < lines.length; at++) {
        const text = this.text(lines[at]);
        const isNext = text.trim() === "" ? this.continues(lines, at + 1, indent.length) : /^ */.exec(text)[0].length > indent.length;
        if (!isNext) break;
        const cut = Math.min(/^ */.exec(text)[0].length, found[0].length);
        inner.push({ start: lines[at].start + cut, end: lines[at].end });
      }
      const content = this.parse(inner, depth + 1);
      const isTight = content.length && content[0].tagName === "P";
      list.append(h("li", {}, isTight ? [[...content[0].childNodes], content.slice(1)] : content));
      // A blank line between two items.
      if (at + 1 < lines.length && this.text(lines[at]).trim() === "" && ITEM.exec(this.text(lines[at + 1]))?.[1].length === indent.length) at++;
    }
    nodes.push(list);
    return at;
  }

  /** Returns `true` if a line after a blank one is part of an item that is indented less. */
  continues(lines, at, indent) {
    const text = at < lines.length ? this.text(lines[at]) : "";
    return text.trim() !== "" && /^ */.exec(text)[0].length > indent + 1;
  }

  paragraph(lines, at, nodes, depth) {
    const parts = [];
    for (const first = at; at < lines.length; at++) {
      const text = this.text(lines[at]);
      const isOther = [FENCE, HEADING, RULE].some((kind) => kind.test(text)) || (depth < DEEPEST && [QUOTE, ITEM].some((kind) => kind.test(text)));
      if (text.trim() === "" || (at > first && isOther)) break;
      const { start, end } = lines[at];
      const from = start + (text.length - text.trimStart().length);
      parts.push(at > first ? (/ {2}$/.test(this.text(lines[at - 1])) ? h("br") : "\n") : null, this.inline(from, end));
    }
    nodes.push(h("p", {}, parts));
    return at;
  }

  /** Returns the nodes of a range within a line. */
  inline(start, end, depth = 0) {
    const nodes = [];
    let plain = start;
    let at = start;
    const flush = (to) => { if (to > plain) nodes.push(this.leaf(plain, to)); };
    while (at < end) {
      const found = depth < DEEPEST ? this.span(at, start, end, depth) : null;
      if (found) {
        flush(at);
        nodes.push(found.node);
        at = plain = found.end;
      } else {
        at++;
      }
    }
    flush(end);
    return nodes;
  }

  /** Returns the code, emphasis or link that begins at a position, and where it ends. */
  span(at, start, end, depth) {
    const rest = this.source.slice(at, Math.min(end, at + 2000));
    switch (rest[0]) {
      case "`": {
        const [mark] = /^`+/.exec(rest);
        const close = new RegExp(`[^\`]${mark}(?!\`)`).exec(rest.slice(mark.length));
        if (!close) return null;
        const [from, to] = [at + mark.length, at + mark.length + close.index + 1];
        return { node: h("code", {}, this.leaf(from, to)), end: to + mark.length };
      }
      case "*": case "_": case "~": {
        const [mark] = /^(\*{1,3}|_{1,3}|~{1,2})/.exec(rest);
        if (mark === "~" || /\s/.test(rest[mark.length] ?? " ")) return null;
        // snake_case is not emphasis.
        if (mark[0] === "_" && at > start && /\w/.test(this.source[at - 1])) return null;
        const close = this.closing(rest, mark);
        if (close < 0) return null;
        const inner = this.inline(at + mark.length, at + close, depth + 1);
        const tags = { "~": ["del"], 1: ["em"], 2: ["strong"], 3: ["em", "strong"] }[mark[0] === "~" ? "~" : mark.length];
        const node = tags.reduce((content, tag) => [h(tag, {}, content)], inner)[0];
        return { node, end: at + close + mark.length };
      }
      case "[": {
        const found = /^\[([^\[\]]+)\]\(([^()\s]+)\)/.exec(rest);
        if (!found || !SAFE.test(found[2])) return null;
        const label = this.inline(at + 1, at + 1 + found[1].length, depth + 1);
        const link = h("a", { href: found[2], rel: "noopener noreferrer nofollow", target: "_blank" }, label);
        return { node: link, end: at + found[0].length };
      }
      default:
        return null;
    }
  }

  /** Returns where emphasis ends, or -1. */
  closing(rest, mark) {
    for (let at = rest.indexOf(mark, mark.length); at >= 0; at = rest.indexOf(mark, at + 1)) {
      const isRun = rest[at + mark.length] === mark[0] || rest[at - 1] === mark[0];
      const isWord = mark[0] === "_" && /\w/.test(rest[at + mark.length] ?? "");
      if (!/\s/.test(rest[at - 1]) && !isRun && !isWord) return at;
    }
    return -1;
  }
}
