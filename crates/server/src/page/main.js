// The page: what the user does, and what follows from it.

import { loadModel, models, onKeyNeeded } from "./api.js";
import { Conversation } from "./conversation.js";
import { byId, fill, h, oncePerFrame } from "./dom.js";
import { difference, Fields, randomSeed, samplerOf } from "./fields.js";
import { Inspector } from "./inspector.js";
import { decode, digest, encode } from "./link.js";
import { Branch } from "./text.js";

/** What is shown. An item is a message of the user, an earlier reply, or a text with its forks. */
const state = { mode: "text", items: [], selection: null, isPainted: true, isCompared: false, model: null, models: [], chosen: 0 };
let running = null;

const fields = new Fields(() => inspector.refresh());
const conversation = new Conversation(byId("conversation"), state, {
  select, activate, retry, more, edit, begin,
  paint: (isOn) => { state.isPainted = isOn; conversation.render(); },
  compare: (isOn) => { state.isCompared = isOn; conversation.render(); },
});
const inspector = new Inspector(byId("inspector"), { fork, close: () => select(null), settings: () => fields.get() });
const render = oncePerFrame(() => conversation.render());

function notice(text, kind = "") {
  fill(byId("notice"), text ? h("p", { class: kind }, text, h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: () => notice("") }, "✕")) : null);
}

/** Runs a branch until it ends, is stopped or fails. */
async function run(item, branch) {
  running?.abort();
  const stop = new AbortController();
  running = stop;
  notice("");
  showSend();
  const follow = followEnd();
  try {
    const done = branch.run(state.model.id, item.asked, () => { render(); follow(); }, stop.signal);
    conversation.render();
    await done;
  } catch (error) {
    notice(error.message, "wrong");
  }
  if (running === stop) running = null;
  conversation.render();
  follow();
  showSend();
  showLink();
}

/** Returns a function that keeps the end in view, unless the reader has scrolled away from it. */
function followEnd() {
  const main = document.scrollingElement;
  return oncePerFrame(() => {
    if (main.scrollHeight - main.scrollTop - main.clientHeight < 160) main.scrollTop = main.scrollHeight;
  });
}

function stop() {
  running?.abort();
}

/** Begins a text, or sends a message. */
function begin(text) {
  // While another model is loaded, its text would be lost.
  if (!text.trim() || state.models[state.chosen] !== state.model) return;
  select(null);
  byId("input").value = state.mode === "text" ? text : "";
  resize();
  const settings = fields.get();
  if (state.mode === "text") {
    state.items = [textItem(text, settings)];
  } else {
    state.items.push({ role: "user", content: text });
    state.items.push(replyItem(settings));
  }
  run(state.items.at(-1), state.items.at(-1).branches[0]);
}

function textItem(prompt, settings) {
  return { role: "text", prompt, asked: { prompt }, branches: [new Branch({ settings, label: "Original" })], active: 0 };
}

/** Returns a reply to the messages so far. */
function replyItem(settings) {
  const said = (item) => (item.role === "user" ? item : { role: "assistant", content: item.content ?? item.branches[item.active].text });
  const messages = state.items.map((item) => ({ role: said(item).role, content: said(item).content }));
  const system = fields.system.value.trim();
  if (system) messages.unshift({ role: "system", content: system });
  return { role: "assistant", asked: { messages }, branches: [new Branch({ settings, label: "Original" })], active: 0 };
}

/** Generates a text again, with another seed unless one is set. */
function retry(item) {
  select(null);
  const settings = fields.get();
  if (settings.seed === item.branches[0].settings.seed) fields.set({ seed: settings.seed = randomSeed() });
  item.branches = [new Branch({ settings, label: "Original" })];
  item.active = 0;
  run(item, item.branches[0]);
}

/** Continues a text that reached its length or was stopped: it becomes what it would be with more tokens. */
function more(item) {
  const branch = item.branches[item.active];
  branch.settings = { ...branch.settings, max_tokens: branch.tokens.length + fields.get().max_tokens };
  run(item, branch);
}

/** Changes a message of the user, and drops what came after it. */
function edit(at, text) {
  state.items[at].isEdited = false;
  if (text?.trim()) {
    state.items = state.items.slice(0, at);
    begin(text);
  }
  conversation.render();
}

function activate(item, number) {
  item.active = number;
  select(null);
  showLink();
}

/** Selects a token, or none. */
function select(item, branch, index) {
  state.selection = item ? { item, branch, index } : null;
  document.body.classList.toggle("inspecting", Boolean(item));
  conversation.render();
  if (!item) return inspector.clear();
  if (!branch.promptIds) return;
  const at = state.items.indexOf(item);
  const generated = byId(`generated-${at}-${item.branches.indexOf(branch)}`);
  generated?.focus({ preventScroll: true });
  generated?.querySelector(".selected")?.scrollIntoView({ block: "nearest" });
  inspector.show(state.model.id, branch, index);
}

/** Forks the selected text at a token: another token, another seed or other settings from there on. */
function fork(index, { token, seed, settings, isOtherSeed }, name) {
  const { item, branch } = state.selection;
  const used = branch.drawOf(index);
  const change = {
    at: index,
    token,
    // Token `i` draws with the seed plus `i`, so keeping the seed keeps the noise.
    seed: isOtherSeed ? seed ?? randomSeed() : used.seed - index,
    settings: { ...samplerOf(used.settings), ...settings, max_tokens: Math.max(fields.get().max_tokens, index + 1 + (token ? 1 : 0)) },
  };
  const what = isOtherSeed ? `seed ${change.seed}` : name;
  const made = branch.forkAt(change, `${index + 1}: ${what}`);
  item.branches.push(made);
  item.active = item.branches.length - 1;
  select(null);
  return run(item, made);
}

/** Puts the text into the address. */
function showLink() {
  const item = state.items.at(-1);
  const branch = item?.branches?.[item.active];
  const isThere = Boolean(branch?.tokens.length);
  byId("copy-link").disabled = !isThere;
  if (!isThere) return;
  const { root, forks } = branch;
  // A text that was stopped is repeated up to there.
  const length = branch.finish === "stop" ? branch.settings.max_tokens : branch.tokens.length;
  const cut = (settings) => ({ ...settings, max_tokens: length });
  const messages = item.asked.messages?.filter(({ role }) => role !== "system");
  const link = {
    model: state.model.id,
    mode: state.mode,
    ...(messages ? { messages, system: item.asked.messages.find(({ role }) => role === "system")?.content } : { prompt: item.prompt }),
    settings: forks.length ? root.settings : cut(root.settings),
    forks: forks.map((one, at) => (at === forks.length - 1 ? { ...one, settings: cut(one.settings) } : one)),
    fingerprint: branch.fingerprint,
    digest: digest(branch.tokens),
  };
  history.replaceState(null, "", `#${encode(link)}`);
}

/** Generates the text of a link, with its model if it is here. */
async function openLink(link) {
  const at = state.models.findIndex(({ id }) => id === link.model);
  if (at >= 0 && state.models[at].id !== state.model?.id && !(await chooseModel(at))) return;
  setMode(link.mode);
  fields.set({ ...fields.recommended, ...link.settings });
  fields.system.value = link.system ?? "";
  const settings = { ...fields.recommended, ...link.settings };
  if (link.mode === "text") {
    byId("input").value = link.prompt;
    resize();
    state.items = [textItem(link.prompt, settings)];
  } else {
    state.items = link.messages.map(({ role, content }) => ({ role, content }));
    state.items.push(replyItem(settings));
  }
  const item = state.items.at(-1);
  let branch = item.branches[0];
  await run(item, branch);
  for (const one of link.forks) {
    if (branch.tokens.length < one.at) break;
    branch = branch.forkAt(one, `${one.at + 1}: ${one.token ? one.token.text.trim() || "token" : difference({ ...branch.settings, ...one.settings }, branch.settings) || `seed ${one.seed}`}`);
    item.branches.push(branch);
    item.active = item.branches.length - 1;
    await run(item, branch);
  }
  const isSame = digest(branch.tokens) === link.digest;
  const isSameModel = !link.fingerprint || link.fingerprint === branch.fingerprint;
  if (isSame) notice(`The same text as in the link: ${branch.tokens.length} tokens, generated again here and compared.`, "good");
  else if (!isSameModel) notice(`This is another text than in the link: it was made by ${link.fingerprint}, and this server has ${branch.fingerprint}.`, "wrong");
  else notice("This is another text than in the link.", "wrong");
}

function setMode(mode) {
  const isText = mode === "text" || !state.model.has_chat_template;
  state.mode = isText ? "text" : "chat";
  for (const [id, isOn] of [["mode-text", isText], ["mode-chat", !isText]]) byId(id).setAttribute("aria-checked", String(isOn));
  fields.systemRow.hidden = isText;
  byId("input").placeholder = isText ? "Write the beginning of a text" : "Write a message";
  byId("input-label").textContent = isText ? "Beginning of the text" : "Message";
  showSend();
}

/** Starts over. */
function clear(mode) {
  stop();
  state.items = [];
  setMode(mode);
  select(null);
  notice("");
  byId("copy-link").disabled = true;
  history.replaceState(null, "", location.pathname);
  byId("input").value = "";
  resize();
}

function showSend() {
  const send = byId("send");
  send.textContent = running ? "Stop" : state.mode === "text" ? "Continue" : "Send";
  send.classList.toggle("stop", Boolean(running));
}

function resize() {
  const input = byId("input");
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight + 2, 220)}px`;
}

/** Uses the model of an index, which is loaded first if need be. Returns `false` if it cannot be, or another was chosen meanwhile. */
async function chooseModel(at) {
  const { id, status } = state.models[at];
  byId("model").selectedIndex = state.chosen = at;
  if (status.value !== "loaded") {
    stop();
    notice(`Loading ${id} …`);
    try {
      state.models[at] = await loadModel(id);
    } catch (error) {
      if (state.chosen === at) {
        state.chosen = byId("model").selectedIndex = state.models.indexOf(state.model);
        notice(error.message, "wrong");
      }
      return false;
    }
    if (state.chosen !== at) return false;
  }
  useModel(state.models[at]);
  return true;
}

function useModel(model) {
  state.model = model;
  fill(byId("fields"), fields.build(model));
  byId("mode-chat").disabled = !model.has_chat_template;
  byId("mode-chat").title = model.has_chat_template ? "" : "This model has no chat template: it continues texts";
  clear(model.has_chat_template ? "chat" : "text");
}

async function copyLink() {
  const button = byId("copy-link");
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "It is in the address bar";
  }
  setTimeout(() => { button.textContent = "Copy link"; }, 2000);
}

/** Asks for the key of the server. */
function askForKey(wasWrong) {
  const dialog = byId("key-dialog");
  byId("key-title").textContent = wasWrong ? "That was not the key" : "This server asks for a key";
  byId("key").value = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(byId("key").value || null), { once: true }));
}

function listen() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (running) stop();
    else begin(byId("input").value);
  });
  byId("input").addEventListener("input", resize);
  byId("input").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!running) begin(byId("input").value);
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (running) stop();
    else if (state.selection) select(null);
  });
  byId("mode-text").addEventListener("click", () => clear("text"));
  byId("mode-chat").addEventListener("click", () => clear("chat"));
  byId("new").addEventListener("click", () => clear(state.mode));
  byId("copy-link").addEventListener("click", copyLink);
  byId("model").addEventListener("change", () => chooseModel(byId("model").selectedIndex));
  addEventListener("hashchange", () => {
    const link = decode(location.hash);
    if (link) openLink(link);
  });
}

async function start() {
  onKeyNeeded(askForKey);
  const { hash } = location;
  const link = decode(hash);
  try {
    state.models = await models();
  } catch (error) {
    return notice(`The server cannot be asked: ${error.message}`, "wrong");
  }
  fill(byId("model"), state.models.map(({ id }) => h("option", { value: id }, id)));
  if (matchMedia("(max-width: 60rem)").matches) byId("settings").open = false;
  await chooseModel(0);
  listen();
  byId("input").focus();
  if (link) await openLink(link);
  else if (hash.length > 1) notice("The link in the address is damaged.", "wrong");
}

start();
