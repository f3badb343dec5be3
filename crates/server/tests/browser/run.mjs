// Drives the page in a real browser: `node run.mjs PTERO SCREENSHOTS`, with the path of the command `ptero` and a folder for pictures.
// Needs Debian's `chromium` (or CHROMIUM=path) and `npm ci` in this folder; `just browser` does all of it.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const [, , ptero, pictures] = process.argv;
assert(ptero && pictures, "usage: node run.mjs PTERO SCREENSHOTS");
mkdirSync(pictures, { recursive: true });
const folder = mkdtempSync(join(tmpdir(), "ptero-browser-"));
const servers = [];
const ARGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ARGS });
/** Generous: the machine may be busy. */
const PATIENCE = 120_000;

/** Starts a server, and returns its address. */
function serve(...args) {
  const child = spawn(ptero, ["serve", "--port", "0", ...args], { stdio: ["ignore", "ignore", "pipe"] });
  servers.push(child);
  return new Promise((resolve, reject) => {
    let said = "";
    child.stderr.on("data", (data) => {
      said += data;
      const found = /page: (http:\S+)/.exec(said);
      if (found) resolve(found[1]);
    });
    child.on("exit", () => reject(new Error(`the server ended: ${said}`)));
  });
}

/** Opens an address in a context of its own, and notes what must not happen. */
async function open(address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.wrong = [];
  page.on("console", (message) => message.type() === "error" && page.wrong.push(message.text()));
  page.on("pageerror", (error) => page.wrong.push(error.message));
  page.on("dialog", (dialog) => { page.wrong.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  const origin = new URL(address).origin;
  page.on("request", (request) => new URL(request.url()).origin !== origin && page.wrong.push(`asked ${request.url()}`));
  await page.goto(address);
  return page;
}

const ready = (page) => page.waitForSelector("#seed", { state: "attached" });
const ended = (page) => page.waitForSelector("#retry");
const text = async (page) => (await page.locator(".generated").last().innerText()).trim();
const picture = (page, name) => page.screenshot({ path: join(pictures, `${name}.png`) });
const set = (page, name, value) => page.fill(`#${name}`, String(value));

async function inspect(page, index) {
  await page.locator(`.generated .token[data-index="${index}"]`).last().click();
  await page.waitForFunction((number) => document.querySelector(".inspector h2")?.textContent.startsWith(`Token ${number}:`) && document.querySelector(".candidates"), index + 1);
}

const tests = {
  async "a text is generated, explained and forked"({ plain }) {
    const page = await open(plain);
    await ready(page);
    await picture(page, "welcome");
    await set(page, "seed", 11);
    await set(page, "max_tokens", 120);
    await page.fill("#input", "Once upon a time, in a house by the river,");
    await page.press("#input", "Enter");
    await ended(page);
    const original = await text(page);
    assert((await page.locator(".token").count()) >= 100);
    assert((await page.locator(".ink.p5, .ink.p4").count()) > 0, "colours");
    await inspect(page, 20);
    const token = (await page.locator('.token[data-index="20"]').innerText()).trim();
    const winner = (await page.locator(".winner th").innerText()).replace("·", "").trim();
    assert.equal(winner, token, "the explanation names the token that was drawn");
    assert.match(await page.locator(".verdict").innerText(), /It won with/);
    const unlikely = await page.locator(".token:has(.ink.p5)").first().getAttribute("data-index");
    await inspect(page, Number(unlikely));
    await picture(page, "page");
    await inspect(page, 20);
    // Another token.
    await page.locator(".rival").first().click();
    await page.waitForSelector(".token.fork.forced");
    await ended(page);
    const forked = await text(page);
    assert.notEqual(forked, original);
    assert.equal(await page.locator(".token.same").count(), 20, "what comes before is marked as unchanged");
    // The seed is the same, so choosing the token that was drawn gives the original again.
    await inspect(page, 20);
    await page.locator(".winner .rival").click();
    await page.waitForFunction(() => document.querySelectorAll(".tabs [role=tab]").length === 3);
    await ended(page);
    assert.equal(await text(page), original, "everything else was kept equal");
    // Another seed.
    await inspect(page, 30);
    await page.fill(".what-if input", "999");
    await page.click("#fork-seed");
    await page.waitForFunction(() => document.querySelectorAll(".tabs [role=tab]").length === 4);
    await ended(page);
    const seeded = await text(page);
    assert.notEqual(seeded, original);
    // Other settings.
    await inspect(page, 40);
    await set(page, "temperature", 1.4);
    await page.waitForSelector("#fork-settings:enabled");
    await page.click("#fork-settings");
    await page.waitForFunction(() => document.querySelectorAll(".tabs [role=tab]").length === 5);
    await ended(page);
    const last = await text(page);
    await page.locator(".tabs [role=tab]").nth(1).click();
    await page.click("#compare");
    assert.equal(await page.locator(".column").count(), 5);
    await page.click("#compare");
    await inspect(page, 20);
    await picture(page, "fork");
    // A link repeats the text, with its forks, for someone else.
    await page.locator(".tabs [role=tab]").last().click();
    const other = await open(page.url());
    await other.waitForSelector("#notice .good, #notice .wrong");
    assert.match(await other.locator("#notice").innerText(), /The same text as in the link: \d+ tokens/);
    assert.equal(await text(other), last);
    await picture(other, "link");
    // A link to the text of another program says so.
    const state = JSON.parse(Buffer.from(new URL(page.url()).hash.slice(1), "base64url"));
    const forged = Buffer.from(JSON.stringify({ ...state, fingerprint: "other", digest: "0" })).toString("base64url");
    const third = await open(`${plain}#${forged}`);
    await third.waitForSelector("#notice .wrong");
    assert.match(await third.locator("#notice").innerText(), /it was made by other/);
    for (const damaged of ["###", "eyJ2IjoxfQ", Buffer.from(JSON.stringify({ ...state, forks: [{ at: -1 }] })).toString("base64url")]) {
      const fourth = await open(`${plain}#${damaged}`);
      await fourth.waitForSelector("#notice .wrong");
      assert.match(await fourth.locator("#notice").innerText(), /damaged/);
      await clean(fourth);
    }
    await Promise.all([page, other, third].map(clean));
  },

  async "the keyboard does everything"({ plain }) {
    const page = await open(plain);
    await ready(page);
    await set(page, "max_tokens", 400);
    await page.fill("#input", "The king");
    await page.press("#input", "Enter");
    await page.waitForSelector('.token[data-index="3"]');
    await page.keyboard.press("Escape");
    await ended(page);
    assert.match(await page.locator(".acts .small").innerText(), /stopped/);
    await page.focus(".generated");
    for (const key of ["ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"]) await page.keyboard.press(key);
    await page.waitForSelector(".candidates");
    assert.match(await page.locator(".inspector h2").innerText(), /^Token 2:/);
    assert.equal(await page.evaluate(() => document.activeElement.className), "generated");
    await page.keyboard.press("Escape");
    assert.equal(await page.locator(".selected").count(), 0);
    // A text that was stopped goes on as if it had not been.
    const before = await text(page);
    await set(page, "max_tokens", 10);
    await page.click("#more");
    await page.waitForFunction((length) => document.querySelector(".generated").innerText.length > length, before.length);
    await ended(page);
    assert((await text(page)).startsWith(before));
    await clean(page);
  },

  async "a conversation can be edited and retried"({ chat }) {
    const page = await open(chat);
    await ready(page);
    assert.equal(await page.getAttribute("#mode-chat", "aria-checked"), "true", "a model with a template chats");
    await set(page, "max_tokens", 24);
    await set(page, "seed", 5);
    await set(page, "system", "A tale.");
    await page.fill("#input", "Hello");
    await page.click("#send");
    await ended(page);
    const first = await text(page);
    await page.fill("#input", "And then?");
    await page.press("#input", "Enter");
    await page.waitForFunction(() => document.querySelectorAll(".message.reply").length === 2);
    await ended(page);
    await inspect(page, 3);
    await page.locator(".rival").first().click();
    await page.waitForSelector(".tabs");
    await ended(page);
    const link = await open(page.url());
    await link.waitForSelector("#notice .good");
    assert.equal(await text(link), await text(page));
    await page.locator(".message.user").first().getByRole("button").click();
    await page.locator(".message.user textarea").fill("Good morning");
    await page.locator(".message.user textarea").press("Enter");
    await page.waitForFunction(() => document.querySelectorAll(".message.reply").length === 1);
    await ended(page);
    assert.notEqual(await text(page), first);
    const edited = await text(page);
    await page.click("#retry");
    await page.waitForFunction((old) => document.querySelector(".generated").innerText.trim() !== old, edited);
    await ended(page);
    await picture(page, "chat");
    await Promise.all([page, link].map(clean));
  },

  async "hostile Markdown stays text"({ chat }) {
    const page = await open(chat);
    await ready(page);
    const hostile = [
      "<img src=x onerror=alert(1)><script>alert(2)</script>", "[a](javascript:alert(3)) [b](data:text/html,x) [c]( javascript:alert(4))",
      "![x](https://example.com/x.png) [ok](https://example.com/?a=\"onclick=alert(5)) <svg onload=alert(6)>", "```html\"onclick=alert(7)\n</code></pre><script>alert(8)</script>",
    ].join("\n\n");
    await set(page, "max_tokens", 4);
    await page.fill("#input", hostile);
    await page.click("#send");
    await ended(page);
    const words = page.locator(".message.user .words");
    assert.equal(await words.locator("img, script, svg, iframe, style, [onclick], [onerror], [onload]").count(), 0);
    const links = await words.locator("a").evaluateAll((all) => all.map((one) => [one.protocol, one.rel]));
    assert(links.length >= 1 && links.every(([protocol, rel]) => protocol === "https:" && rel.includes("noopener")), JSON.stringify(links));
    assert.match(await words.innerText(), /<img src=x onerror=alert\(1\)>/);
    // Whatever is nested, unfinished or long, comes back within a moment and with all its letters.
    const shown = await page.evaluate(async () => {
      const { markdown } = await import("/page/markdown.js");
      const plain = (source) => markdown(source).map((node) => node.textContent).join(" ");
      const long = ["> ".repeat(5000), "- ".repeat(5000), "*".repeat(20000), "[".repeat(20000), "`".repeat(20001), "**a ".repeat(3000), "_a".repeat(9000), `${"```\n".repeat(3001)}x`];
      const start = performance.now();
      long.forEach(plain);
      const nested = markdown("1. one\n   - two\n\n   three\n2. **four _five_** `six`\n\n> seven\n> # eight\n\n```js\nnine\n\n  ten\n```\n***eleven*** ~~twelve~~ snake_case_word");
      const words = nested.map((node) => node.textContent).join(" ");
      const tags = nested.map((node) => node.tagName).join(" ");
      const spans = markdown("a **b** c", (from, to) => [document.createTextNode(`{${from}-${to}}`)])[0].textContent;
      return { time: performance.now() - start, words, tags, spans };
    });
    assert(shown.time < 5000, `${shown.time} ms`);
    assert.match(shown.words, /one[^]*two[^]*three[^]*four five six[^]*seven[^]*eight[^]*nine\n\n {2}ten[^]*eleven twelve snake_case_word/);
    assert.equal(shown.tags, "OL BLOCKQUOTE PRE P");
    assert.equal(shown.spans, "{0-2}{4-5}{7-9}");
    await picture(page, "hostile");
    await clean(page);
  },

  async "thoughts are folded above the answer, and code and answers can be copied"({ chat, thinking }) {
    const page = await open(chat, { permissions: ["clipboard-read", "clipboard-write"] });
    await ready(page);
    // What a model that thinks would send; the included one does not.
    const piece = (id, delta, rest = {}) => ({ system_fingerprint: "f", choices: [{ index: 0, delta, token_ids: id ? [id] : [], logprobs: { content: id ? [{ logprob: -0.5 }] : [] }, finish_reason: null, ...rest }] });
    const events = [
      { ...piece(0, { role: "assistant", content: "" }), prompt_token_ids: [1, 2] },
      piece(3, {}), piece(4, { reasoning_content: "Let me" }), piece(5, { reasoning_content: " see." }), piece(6, {}),
      piece(7, { reasoning_content: "!" }), piece(0, { content: "So:\n" }), piece(8, { content: "```js\nlet a" }), piece(9, { content: " = 1;\nb();\n```\n" }, { finish_reason: "stop" }),
    ];
    const asked = [];
    await page.route("**/v1/chat/completions", (route) => {
      asked.push(route.request().postDataJSON());
      const body = [...events.map((event) => JSON.stringify(event)), "[DONE]"].map((data) => `data: ${data}\n\n`).join("");
      return route.fulfill({ contentType: "text/event-stream", body });
    });
    await page.fill("#input", "Why?");
    await page.click("#send");
    await ended(page);
    const thoughts = page.locator(".generated .thoughts");
    assert.equal(await thoughts.locator("summary").innerText(), "Thoughts (5 tokens)");
    assert.equal(await thoughts.evaluate((one) => one.open), false, "folded");
    assert.equal(await thoughts.locator("p").evaluate((one) => one.textContent), "Let me see.!");
    assert.equal(await page.locator(".generated pre code").innerText(), "let a = 1;\nb();");
    await thoughts.locator("summary").focus();
    await page.keyboard.press("Enter");
    assert.equal(await thoughts.evaluate((one) => one.open), true, "opened with the keyboard");
    await picture(page, "thoughts");
    const copied = () => page.evaluate(() => navigator.clipboard.readText());
    await page.locator(".generated pre .copy").click();
    await page.waitForFunction(() => document.querySelector("pre .copy").textContent === "Copied");
    assert.equal(await copied(), "let a = 1;\nb();");
    await page.locator(".acts .copy").click();
    await page.waitForFunction(() => document.querySelector(".acts .copy").textContent === "Copied");
    assert.equal(await copied(), "So:\n```js\nlet a = 1;\nb();\n```\n");
    // Thoughts are not part of the conversation.
    await page.fill("#input", "And then?");
    await page.click("#send");
    await page.waitForFunction(() => document.querySelectorAll(".message.reply").length === 2);
    await ended(page);
    assert.deepEqual(asked[1].messages.map(({ content }) => content), ["Why?", "So:\n```js\nlet a = 1;\nb();\n```\n", "And then?"]);
    // A model that thinks until its tokens are used up: its thoughts can be explained and forked.
    const real = await open(thinking);
    await ready(real);
    await set(real, "max_tokens", 12);
    await set(real, "seed", 4);
    await real.fill("#input", "Why?");
    await real.click("#send");
    await ended(real);
    assert.equal(await real.locator(".thoughts summary").innerText(), "Thoughts (12 tokens)");
    assert.equal(await real.locator(".thoughts .token").count(), 12);
    assert.equal(await real.locator(".generated > p").count(), 0, "there is no answer");
    await real.locator(".thoughts summary").click();
    await inspect(real, 3);
    await real.locator(".rival").first().click();
    await real.waitForSelector(".thoughts .token.forced");
    await ended(real);
    assert.equal(await real.locator(".thoughts .token").count(), 12, "the fork thinks, too");
    await Promise.all([page, real].map(clean));
  },

  async "dark, and on a phone"({ plain }) {
    const dark = await open(plain, { colorScheme: "dark" });
    await ready(dark);
    await set(dark, "seed", 7);
    await dark.locator(".examples button").first().click();
    await ended(dark);
    await inspect(dark, 14);
    const colours = await dark.evaluate(() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]);
    assert(colours[0].startsWith("rgb(2") && colours[1].startsWith("rgb(23"), colours.join());
    await picture(dark, "dark");
    const phone = await open(plain, { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true });
    await ready(phone);
    await phone.locator(".examples button").first().tap();
    await ended(phone);
    await phone.locator('.token[data-index="6"]').tap();
    await phone.waitForSelector(".inspector.open .candidates");
    const widths = await phone.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert(widths[0] <= widths[1], `nothing is wider than the screen: ${widths}`);
    await picture(phone, "phone");
    await Promise.all([dark, phone].map(clean));
  },

  async "another model is loaded when it is chosen, and links name their model"({ both }) {
    const page = await open(both);
    await ready(page);
    assert.deepEqual(await page.locator("#model option").allInnerTexts(), ["small", "other", "broken"]);
    await page.selectOption("#model", "other");
    await page.waitForFunction(() => !document.getElementById("notice").textContent);
    await set(page, "max_tokens", 12);
    await set(page, "seed", 3);
    await page.fill("#input", "The king");
    await page.press("#input", "Enter");
    await ended(page);
    await inspect(page, 4);
    await picture(page, "models");
    // Someone else, whose page begins with the first model.
    const link = await open(page.url());
    await link.waitForSelector("#notice .good");
    assert.equal(await link.inputValue("#model"), "other");
    assert.equal(await text(link), await text(page));
    // One that cannot be loaded leaves the page as it was.
    await page.selectOption("#model", "broken");
    await page.waitForSelector("#notice .wrong");
    assert.match(await page.locator("#notice").innerText(), /the model `broken` could not be loaded/);
    assert.equal(await page.inputValue("#model"), "other");
    assert.equal(await text(page), await text(link));
    await set(page, "seed", 4);
    await page.click("#retry");
    await ended(page);
    // The browser itself notes the refusal.
    page.wrong = page.wrong.filter((text) => !text.includes("500"));
    await Promise.all([page, link].map(clean));
  },

  async "a key is asked for, and kept for the tab"({ locked }) {
    const page = await open(locked);
    await page.waitForSelector("#key-dialog[open]");
    await page.fill("#key", "wrong");
    await page.press("#key", "Enter");
    await page.waitForFunction(() => document.getElementById("key-title").textContent === "That was not the key");
    await page.fill("#key", "secret");
    await page.press("#key", "Enter");
    await ready(page);
    await set(page, "max_tokens", 5);
    await page.locator(".examples button").first().click();
    await ended(page);
    await page.reload();
    await ready(page);
    assert.equal(await page.locator("#key-dialog[open]").count(), 0);
    // The browser itself notes the two refusals.
    page.wrong = page.wrong.filter((text) => !text.includes("401"));
    await clean(page);
  },

  async "controls have names"({ plain }) {
    const page = await open(plain);
    await ready(page);
    const nameless = await page.evaluate(() => {
      const named = (one) => one.labels?.length || one.getAttribute("aria-label") || one.textContent.trim() || one.title;
      return [...document.querySelectorAll("button, input, textarea, select")].filter((one) => !named(one)).map((one) => one.outerHTML);
    });
    assert.deepEqual(nameless, []);
    await clean(page);
  },
};

/** Fails if a page complained, asked elsewhere or opened a dialog; closes it. */
async function clean(page) {
  assert.deepEqual(page.wrong, []);
  await page.context().close();
}

let failed = 0;
try {
  const template = join(folder, "chat.jinja");
  writeFileSync(template, "{% for message in messages %}{{ message.content }}\n{% endfor %}");
  const broken = join(folder, "broken.pte");
  writeFileSync(broken, "no program");
  const [small, other] = ["qwen", "gemma"].map((name) => fileURLToPath(new URL(`../../../../models/little-${name}.pte`, import.meta.url)));
  const models = ["-m", `small=${small}`, "-m", `other=${other}`, "-m", `broken=${broken}`];
  const thoughtful = join(folder, "thinking.jinja");
  writeFileSync(thoughtful, "{% for message in messages %}{{ message.content }}\n{% endfor %}{# </think> #}<think>\n");
  const [plain, chat, thinking, locked, both] = await Promise.all([
    serve(), serve("--chat-template", template), serve("--chat-template", thoughtful), serve("--api-key", "secret"), serve(...models),
  ]);
  for (const [name, test] of Object.entries(tests)) {
    const start = Date.now();
    try {
      await test({ plain, chat, thinking, locked, both });
      console.log(`ok      ${name} (${((Date.now() - start) / 1000).toFixed(1)} s)`);
    } catch (error) {
      failed++;
      console.log(`FAILED  ${name}\n${error.stack}`);
    }
  }
} finally {
  servers.forEach((server) => server.removeAllListeners("exit").kill());
  await browser.close();
  rmSync(folder, { recursive: true });
}
process.exit(failed ? 1 : 0);
