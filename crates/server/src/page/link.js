// A text in the fragment of the address: what was asked, the seed, the settings and the forks. Whoever opens the link generates it
// again; the digest tells whether it is the same.

const VERSION = 1;
const LONGEST = 100_000;

/** Returns a digest of tokens, FNV-1a, which finds differences and protects nothing. */
export function digest(tokens) {
  let found = 0x811c9dc5;
  for (const { id } of tokens) {
    for (const byte of [id & 255, (id >> 8) & 255, (id >> 16) & 255, id >>> 24]) found = Math.imul(found ^ byte, 0x01000193);
  }
  return (found >>> 0).toString(16).padStart(8, "0");
}

/** Returns a state as a fragment. */
export function encode(state) {
  const bytes = new TextEncoder().encode(JSON.stringify({ v: VERSION, ...state }));
  const binary = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Returns the state of a fragment, or `null` if it has none. Links come from strangers: everything is checked. */
export function decode(fragment) {
  const encoded = fragment.replace(/^#/, "");
  if (!encoded || encoded.length > LONGEST) return null;
  try {
    const binary = atob(encoded.replaceAll("-", "+").replaceAll("_", "/"));
    const state = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(binary, (c) => c.charCodeAt(0))));
    return isState(state) ? state : null;
  } catch {
    return null;
  }
}

const isNumbers = (object) => object && typeof object === "object" && Object.values(object).every(Number.isFinite);
const isMessage = (one) => ["user", "assistant"].includes(one?.role) && typeof one.content === "string";
const isFork = (fork) => Number.isInteger(fork?.at) && fork.at >= 0 && Number.isInteger(fork.seed) && isNumbers(fork.settings)
  && (fork.token === undefined || (Number.isInteger(fork.token.id) && typeof fork.token.text === "string"));

function isState(state) {
  const isAsked = state?.mode === "chat"
    ? Array.isArray(state.messages) && state.messages.every(isMessage) && state.messages.at(-1)?.role === "user"
    : state?.mode === "text" && typeof state.prompt === "string";
  return isAsked && state.v === VERSION && isNumbers(state.settings) && Number.isInteger(state.settings.seed)
    && Array.isArray(state.forks) && state.forks.every(isFork)
    && [state.model, state.system, state.fingerprint, state.digest].every((text) => text === undefined || typeof text === "string");
}
