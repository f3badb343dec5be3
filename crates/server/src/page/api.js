// Requests to the server that this page came from.

const KEY = "ptero-api-key";

/** What the server refused, in its own words. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let askForKey = async () => null;

/** Sets the function that asks the user for a key; it resolves to `null` if there is none. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

async function ask(path, options) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    const response = await fetch(path, { ...options, headers });
    if (response.ok) return response;
    const answer = await response.json().catch(() => ({}));
    const refused = new Refused(response.status, answer.error?.message ?? `status ${response.status}`);
    if (response.status !== 401) throw refused;
    const given = await askForKey(Boolean(key));
    if (!given) throw refused;
    sessionStorage.setItem(KEY, given);
  }
}

const posted = (body, signal) => ({
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
});

/** Returns the models of the server. */
export async function models() {
  return (await (await ask("v1/models", {})).json()).data;
}

/** Loads a model, and returns what there is to know about it. */
export async function loadModel(id) {
  return (await ask(`v1/models/${id.split("/").map(encodeURIComponent).join("/")}`, { method: "POST" })).json();
}

/** Returns why a token was drawn. */
export async function explain(body, signal) {
  return (await ask("v1/explain", posted(body, signal))).json();
}

/** Asks for a stream, and calls `take` with each of its events. */
export async function stream(path, body, take, signal) {
  const response = await ask(path, posted({ ...body, stream: true }, signal));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") continue;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new Refused(500, parsed.error.message);
      take(parsed);
    }
  }
}
