// The page's script. The server renders the HTML; this script sends requests, reads event streams
// and inserts the HTML that it receives.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const create = (tag, values) => Object.assign(document.createElement(tag), values);

/** Sends a body as JSON to an endpoint of the page. */
function post(address, body, token) {
  return fetch(address, { method: "POST", headers: { "content-type": "application/json", "x-token": token }, body: JSON.stringify(body) });
}

/* The theme is stored in a cookie, so that the server renders the next page in it. */
$("[data-theme-switch]")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
});

/** Returns the HTML at an address; null if there is none, or if the server asks to sign in instead. */
async function fragment(address, options) {
  try {
    const response = await fetch(address, options);
    return response.ok && !response.redirected ? await response.text() : null;
  } catch {
    return null;
  }
}

/** Stops a run, and says so if that fails. */
async function stopRun(id, token) {
  const body = new URLSearchParams({ token, from: "script" });
  const done = await fragment(`/ui/runs/${encodeURIComponent(id)}/stop`, { method: "POST", body });
  if (done === null) say("The run could not be stopped: reload the page, then try again.");
}

/** Shows a message for a few seconds. */
function say(text) {
  $(".toast")?.remove();
  const toast = create("p", { className: "toast", role: "status", textContent: text });
  document.body.append(toast);
  setTimeout(() => toast.remove(), 3500);
}

/* ---- a graph and its panels ---------------------------------------------------------- */

function open(root, at, { focus = false } = {}) {
  for (const panel of $$("[data-panel]", root)) panel.hidden = panel.dataset.panel !== at;
  for (const node of $$("[data-node]", root)) node.toggleAttribute("data-open", node.dataset.node === at);
  for (const arrow of $$("[data-arrow]", root)) arrow.classList.toggle("lit", arrow.dataset.arrow === at);
  const hint = $("[data-hint]", root);
  if (hint && at) hint.hidden = true;
  const panel = $(`[data-panel="${at}"]`, root);
  if (panel && focus) {
    panel.focus({ preventScroll: true });
    panel.scrollIntoView({ block: "nearest", behavior: "smooth" });
  }
}

function wire(root) {
  root.addEventListener("click", (event) => {
    const node = event.target.closest("[data-node], [data-goto]");
    if (!node || event.metaKey || event.ctrlKey) return;
    event.preventDefault();
    const at = node.dataset.node ?? node.dataset.goto;
    const again = node.matches("[data-node][data-open]");
    open(root, again ? "" : at, { focus: !again });
    const panel = $(`[data-panel="${at}"]`, root);
    if (root.matches("[data-address]") && panel) history.replaceState(null, "", again ? location.pathname + location.search : `#${panel.id}`);
  });
  root.addEventListener("keydown", (event) => {
    const node = event.target.closest?.("[data-node]");
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (!node || !step) return;
    event.preventDefault();
    const nodes = $$("[data-node]", root);
    nodes[(nodes.indexOf(node) + step + nodes.length) % nodes.length].focus();
  });
}

/* Buttons that switch between raw and rendered text, and buttons that copy. */
document.addEventListener("click", ({ target }) => {
  const card = target.closest(".card, .panel");
  if (target.closest("[data-copy-below]")) copy(target.closest("h4").nextElementSibling?.textContent ?? "");
  else if (target.closest("[data-copy-raw]")) copy($("[data-raw-text]", card).textContent);
  else if (target.closest("[data-copy-code]")) copy($("code", target.closest("pre")).textContent);
  else if (target.closest("[data-rendered]")) showRendered(target.closest("[data-rendered]"));
  else if (target.closest("[data-raw]")) {
    const button = target.closest("[data-raw]");
    const raw = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", raw);
    $("[data-raw-text]", card).hidden = !raw;
    $(".answer", card).hidden = raw;
  }
});

/** Switches a text between raw and rendered; the rendered text is requested only once. */
async function showRendered(button) {
  const raw = button.closest("h4").nextElementSibling;
  let rendered = raw.nextElementSibling?.matches(".answer") ? raw.nextElementSibling : null;
  if (!rendered) {
    const innerHTML = await fragment(button.dataset.rendered);
    if (innerHTML === null) return say("The text could not be rendered.");
    rendered = create("div", { className: "answer", hidden: true, innerHTML });
    raw.after(rendered);
    addCopies(rendered.parentElement);
  }
  raw.hidden = rendered.hidden;
  rendered.hidden = !raw.hidden;
  button.setAttribute("aria-pressed", !rendered.hidden);
}

/** Adds a copy button to each code block of the answers. */
function addCopies(root) {
  for (const code of $$(".answer pre > code", root)) {
    if ($("[data-copy-code]", code.parentElement)) continue;
    const button = create("button", { type: "button", className: "quiet copy", textContent: "Copy" });
    button.dataset.copyCode = "";
    button.setAttribute("aria-label", "Copy the code");
    code.before(button);
  }
}
addCopies(document);

for (const root of $$("[data-run]")) {
  wire(root);
  const target = location.hash ? $(`#${CSS.escape(location.hash.slice(1))}`, root) : null;
  open(root, target?.dataset.panel ?? root.dataset.opens ?? "");
}

/* ---- a stream of events --------------------------------------------------------------- */

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const frame = text.slice(0, end);
      if (!frame.startsWith("event: ")) continue;
      const cut = frame.indexOf("\ndata: ");
      yield [frame.slice(7, cut), JSON.parse(frame.slice(cut + 7))];
    }
  }
}

/** The view of one run: its workflow, while this is written and executed, and its answer. */
class Stage {
  constructor(root) {
    this.root = root;
    wire(root);
  }

  part(name) {
    return $(`[data-${name}]`, this.root);
  }

  clear() {
    this.root.hidden = false;
    this.ended = false;
    clearInterval(this.clock);
    for (const name of ["rounds", "panels", "links"]) this.part(name).replaceChildren();
    this.part("answer").innerHTML = '<p class="note">The answer appears here as soon as the last step begins to write it.</p>';
    this.part("answer").setAttribute("aria-busy", "true");
    this.part("hint").hidden = true;
    this.part("draft").hidden = true;
    this.part("draft").textContent = "";
    this.phase("The conductor is writing the workflow…");
    this.totals({ tokens: "0 tok", cost: "$0" });
    this.started = performance.now();
    this.clock = setInterval(() => this.tick(), 100);
    this.tick();
  }

  tick() {
    this.part("time").textContent = `${((performance.now() - this.started) / 1000).toFixed(1)} s`;
  }

  phase(text) {
    this.part("planning").hidden = !text;
    this.part("phase").textContent = text;
  }

  totals({ tokens, cost }) {
    this.part("tokens").textContent = tokens;
    this.part("cost").textContent = cost;
  }

  /** Starts a run and shows its events; resolves when the run has ended or failed. */
  ask(body, token) {
    this.token = token;
    return this.show(() => post("/ui/ask", body, token));
  }

  /** Shows the events of a run that was started elsewhere, from the beginning. */
  follow(id, token) {
    this.token = token;
    return this.show(() => fetch(this.address(id)));
  }

  address(id) {
    return `/ui/runs/${encodeURIComponent(id)}/events?${new URLSearchParams({ scope: this.root.dataset.stage })}`;
  }

  /** Shows the events of a run; connects again if the connection is lost, because the run continues. */
  async show(first) {
    this.id = null;
    this.halt = false;
    this.clear();
    let broken = 0;
    for (let tries = 0; !this.ended; tries++) {
      if (tries) await new Promise((resume) => setTimeout(resume, 1000));
      try {
        const response = await (this.id ? fetch(this.address(this.id)) : first());
        if (!this.id && response.redirected) {
          const address = new URL(response.url);
          this.begin(decodeURIComponent(address.pathname.split("/")[3]), address.searchParams.get("chat"));
        }
        if (response.status === 404 && this.id && tries < 900) {
          this.phase("The run continues on another server; looking for it…");
          continue;
        }
        if (!response.ok) {
          const said = await response.json().catch(() => null);
          this.onFailed({ message: said?.error?.message ?? `The server answered ${response.status}.` });
          break;
        }
        if (tries) this.clear();
        for await (const [name, data] of events(response)) this[`on${name[0].toUpperCase()}${name.slice(1)}`]?.(data);
      } catch {
        if (!this.id) this.onFailed({ message: "The server cannot be reached." });
      }
      if (!this.ended && ++broken > 5) this.onFailed({ message: "The connection was lost; the run continues unless the server was stopped." });
    }
    clearInterval(this.clock);
    this.part("answer").setAttribute("aria-busy", "false");
    if (this.id) this.links();
  }

  async stop() {
    this.halt = true;
    if (!this.id || this.ended) return;
    await stopRun(this.id, this.token);
  }

  /* Handlers of the events, by their names. */

  onOpened({ id, seconds }) {
    this.started = performance.now() - 1000 * seconds;
    if (!this.id) this.begin(id);
    if (this.halt) this.stop();
  }

  begin(id, chat) {
    this.id = id;
    this.onBegin?.(id, chat);
  }

  onBegan() {
    this.part("rounds").replaceChildren();
    this.part("panels").replaceChildren();
  }

  onDrafted({ text }) {
    const draft = this.part("draft");
    if (this.part("planning").hidden) this.phase("The conductor is checking the answer…");
    draft.hidden = false;
    draft.append(text);
    draft.scrollTop = draft.scrollHeight;
  }

  onPlanned({ round, steps, html, panels, totals }) {
    this.part("draft").hidden = true;
    this.part("draft").textContent = "";
    this.phase("");
    // A person who approves may have edited the plan: the round is then planned again.
    for (const old of $$(`[data-round="${round}"], [data-panel^="${round}."]`, this.root)) old.remove();
    this.part("rounds").insertAdjacentHTML("beforeend", html);
    this.part("panels").insertAdjacentHTML("beforeend", panels);
    this.part("hint").hidden = !steps;
    this.totals(totals);
    open(this.root, "");
  }

  node(at) {
    return $(`[data-node="${at.join(".")}"]`, this.root);
  }

  onWaits({ text }) {
    this.phase(text);
  }

  onStep({ at, worker }) {
    this.phase("");
    const node = this.node(at);
    if (!node) return;
    this.light(node, "running");
    $(".node-who", node).textContent = worker;
  }

  light(node, state) {
    node.dataset.state = state;
    $("[data-status]", node).textContent = state;
  }

  onSpoke({ at, text }) {
    const name = at.join(".");
    const stream = $(`[data-panel="${name}"] [data-stream]`, this.root);
    if (stream) {
      stream.append(text);
      stream.scrollTop = stream.scrollHeight;
    }
    const node = this.node(at);
    if (node) $("[data-foot]", node).textContent = `${(stream?.textContent.length ?? 0).toLocaleString("en").replaceAll(",", "\u202f")} characters`;
  }

  /** Shows the answer so far, rendered like the complete answer. */
  onAnswering({ html }) {
    this.part("answer").replaceChildren(create("div", { className: "answer live", innerHTML: html }));
  }

  onRetried({ at, why }) {
    const node = this.node(at);
    const stream = $(`[data-panel="${at.join(".")}"] [data-stream]`, this.root);
    if (stream) stream.textContent = "";
    if (node) $("[data-foot]", node).textContent = `again: ${why}`;
  }

  onStepped({ at, html, totals }) {
    const fresh = create("div", { innerHTML: html });
    const name = at.join(".");
    const node = this.node(at);
    const panel = $(`[data-panel="${name}"]`, this.root);
    const next = $("[data-node]", fresh);
    const unfolded = $("[data-panel]", fresh);
    if (node?.hasAttribute("data-open")) next.toggleAttribute("data-open", true);
    if (panel) unfolded.hidden = panel.hidden;
    const focused = document.activeElement === node;
    node?.replaceWith(next);
    panel?.replaceWith(unfolded);
    if (focused) next.focus();
    this.totals(totals);
  }

  onEnded({ id, html, totals, time }) {
    this.ended = true;
    this.id = id;
    clearInterval(this.clock);
    this.phase("");
    this.part("hint").hidden = true;
    this.part("answer").innerHTML = html;
    addCopies(this.part("answer"));
    this.part("time").textContent = time;
    this.totals(totals);
  }

  onFailed({ message }) {
    this.ended = true;
    clearInterval(this.clock);
    this.phase("");
    this.part("hint").hidden = true;
    this.part("answer").replaceChildren(create("p", { className: "failure", textContent: message }));
    for (const node of $$('[data-state="running"]', this.root)) this.light(node, "skipped");
  }

  onStopped() {
    this.onFailed({ message: "Stopped. The cost so far is recorded in the run." });
  }

  links() {
    const id = encodeURIComponent(this.id);
    const run = create("a", { href: `/ui/runs/${id}`, textContent: "Open the run" });
    const compare = create("a", { href: `/ui/compare?a=${id}`, textContent: "Compare" });
    const edit = create("a", { href: `/ui/runs/${id}/edit`, textContent: "Edit the plan" });
    const further = this.part("rounds").childElementCount ? [edit, compare] : [compare];
    this.part("links").replaceChildren(run, ...(this.root.closest("[data-versus]") ? [] : further));
  }
}

/* ---- asking a question ------------------------------------------------------------------- */

function number(value) {
  return value === "" ? undefined : Number(value);
}

/** Returns the form as the body of a chat completion. */
function bodyOf(form) {
  const field = (name) => form.elements[name]?.value ?? "";
  const boxes = $$('[name="worker"]', form);
  const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
  const orchestration = {
    max_cost_usd: number(field("max_cost_usd")),
    deadline_s: number(field("deadline_s")),
    workers_allow: chosen.length && chosen.length < boxes.length ? chosen : undefined,
  };
  const wished = Object.values(orchestration).some((value) => value !== undefined);
  const asked = field("question");
  const texts = attached.some(({ part }) => part.file?.file_data.startsWith("data:text/"));
  const content = attached.length ? [{ type: "text", text: texts ? `${asked}\n\n` : asked }, ...attached.map(({ part }) => part)] : asked;
  const system = field("system") ? [{ role: "system", content: field("system") }] : [];
  return {
    model: field("model"),
    messages: [...system, { role: "user", content }],
    reasoning_effort: field("effort") || undefined,
    temperature: number(field("temperature")),
    top_p: number(field("top_p")),
    max_tokens: number(field("max_tokens")),
    seed: number(field("seed")),
    orchestration: wished ? orchestration : undefined,
  };
}

/* ---- attachments of a question ------------------------------------------------------------- */

let attached = [];
const MOST_BYTES = 14_000_000;

/** Returns a file as a part of a message: an image, a recording, or else a file. */
function partOf(name, type, url) {
  const data = url.slice(url.indexOf(",") + 1);
  if (type.startsWith("image/")) return { type: "image_url", image_url: { url } };
  if (/wav|mpeg|mp3/.test(type)) return { type: "input_audio", input_audio: { data, format: type.includes("wav") ? "wav" : "mp3" } };
  return { type: "file", file: { filename: name, file_data: url.startsWith("data:application/octet-stream") || url.startsWith("data:;") ? `data:text/plain;base64,${data}` : url } };
}

function readFile(file) {
  return new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done({ name: file.name, part: partOf(file.name, file.type, reader.result), size: file.size });
    reader.onerror = () => fail(reader.error);
    reader.readAsDataURL(file);
  });
}

async function attach(files, place) {
  const size = [...attached, ...files].reduce((sum, file) => sum + file.size, 0);
  if (size > MOST_BYTES) return say("Files of more than 14 MB together are not sent.");
  try {
    for (const file of files) attached.push(await readFile(file));
  } catch {
    say("The file cannot be read.");
  }
  showFiles(place);
}

function showFiles(place, removable = true) {
  place.hidden = !attached.length;
  place.replaceChildren(...attached.map((file) => {
    const item = create("li");
    const size = file.size < 1e5 ? `${Math.ceil(file.size / 1000)} kB` : `${(file.size / 1e6).toFixed(1)} MB`;
    item.append(create("span", { className: "cut", textContent: file.name }), create("small", { textContent: size }));
    if (!removable) return item;
    const remove = create("button", { type: "button", className: "icon", textContent: "✕" });
    remove.setAttribute("aria-label", `Remove ${file.name}`);
    remove.addEventListener("click", () => {
      attached = attached.filter((each) => each !== file);
      showFiles(place);
      $("#question").focus();
    });
    item.append(remove);
    return item;
  }));
}

/* ---- presets: named settings in this browser ----------------------------------------------- */

const PRESET_FIELDS = ["model", "effort", "max_cost_usd", "deadline_s", "system", "tools", "temperature", "top_p", "max_tokens", "seed"];

class Presets {
  constructor(form) {
    this.form = form;
    this.select = $("[data-preset]", form);
    this.name = $("[data-preset-name]", form);
    this.select.addEventListener("change", () => this.use());
    $("[data-preset-save]", form).addEventListener("click", () => this.save());
    $("[data-preset-delete]", form).addEventListener("click", () => this.remove());
    this.name.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.save();
    });
    this.show("");
  }

  read() {
    try {
      return JSON.parse(localStorage.getItem("presets")) ?? {};
    } catch {
      return {};
    }
  }

  write(presets, chosen) {
    try {
      localStorage.setItem("presets", JSON.stringify(presets));
    } catch {
      say("The browser does not allow this page to store presets.");
    }
    this.show(chosen);
  }

  show(chosen) {
    const names = Object.keys(this.read()).sort();
    this.select.replaceChildren(new Option(names.length ? "choose" : "none yet", ""), ...names.map((name) => new Option(name, name, false, name === chosen)));
    this.select.disabled = !names.length;
    $("[data-preset-delete]", this.form).hidden = !this.select.value;
  }

  use() {
    const found = this.read()[this.select.value];
    $("[data-preset-delete]", this.form).hidden = !found;
    if (!found) return;
    const missing = !$$("option", this.form.elements.model).some((option) => option.value === found.model);
    for (const name of PRESET_FIELDS) if (!(name === "model" && missing)) this.form.elements[name].value = found[name] ?? "";
    for (const box of $$('[name="worker"]', this.form)) box.checked = !found.workers || found.workers.includes(box.value);
    this.form.dispatchEvent(new Event("change"));
    if (missing) say(`The system ${found.model} is not served now.`);
  }

  save() {
    const name = this.name.value.trim();
    if (!name) {
      this.name.focus();
      return say("Give the preset a name.");
    }
    const kept = Object.fromEntries(PRESET_FIELDS.map((field) => [field, this.form.elements[field].value]));
    const boxes = $$('[name="worker"]', this.form);
    if (boxes.some((box) => !box.checked)) kept.workers = boxes.filter((box) => box.checked).map((box) => box.value);
    this.write({ ...this.read(), [name]: kept }, name);
    this.name.value = "";
    say("Saved in this browser.");
  }

  remove() {
    const { [this.select.value]: _, ...rest } = this.read();
    this.write(rest, "");
    this.select.focus();
  }
}

function asCurl(body) {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl ${location.origin}/v1/chat/completions \\\n  -H 'content-type: application/json' \\\n  -H "authorization: Bearer $BATUTA_KEY" \\\n  -d '${json}'`;
}

function asPython(body) {
  const { orchestration, ...rest } = body;
  const value = (given) => JSON.stringify(given).replace(/\b(true|false|null)\b(?=(?:[^"\\]*(?:\\.|"(?:[^"\\]*\\.)*[^"\\]*"))*[^"]*$)/g, (word) => ({ true: "True", false: "False", null: "None" })[word]);
  const lines = Object.entries(rest).filter(([, given]) => given !== undefined).map(([name, given]) => `    ${name}=${value(given)},`);
  if (orchestration) lines.push(`    extra_body={"orchestration": ${value(orchestration)}},`);
  return `import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${location.origin}/v1", api_key=os.environ.get("BATUTA_KEY", "none"))\nreply = client.chat.completions.create(\n${lines.join("\n")}\n)\nprint(reply.choices[0].message.content)\n`;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    say("The browser does not allow this page to copy.");
  }
}

/** Replaces the Ask button by Stop while `work` runs; the keyboard focus moves along. */
async function during(form, work) {
  const go = $$('[data-dry], button[type="submit"]', form);
  const stop = $("[data-stop]", form);
  const held = go.includes(document.activeElement);
  for (const button of go) button.hidden = true;
  stop.hidden = false;
  if (held) stop.focus();
  try {
    await work();
  } finally {
    const back = document.activeElement === stop;
    for (const button of go) button.hidden = false;
    stop.hidden = true;
    if (back) go.at(-1).focus();
  }
}

/* While Stop is shown, a form asks nothing: Ctrl+Enter, and Enter in a field, also submit it. */
document.addEventListener("submit", (event) => {
  if (!$("[data-stop]:not([hidden])", event.target)) return;
  event.preventDefault();
  event.stopPropagation();
}, true);

/* The page gets the URL of a run as soon as the run begins, so that reloading the page shows the run. */
let shown = location.pathname + location.search;
function moveTo(address, replaces = address === shown) {
  history[replaces ? "replaceState" : "pushState"](null, "", address);
  shown = address;
}
addEventListener("popstate", () => {
  if (location.pathname + location.search !== shown) location.reload();
});

/** The turns of a conversation, and the form for the next turn. */
class Chat {
  constructor(form) {
    this.form = form;
    this.turns = $("[data-turns]");
    this.files = $("[data-files]", form);
    this.question = $("#question");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      during(form, () => this.ask(false));
    });
    $("[data-dry]", form)?.addEventListener("click", () => form.reportValidity() && during(form, () => this.ask(true)));
    $("[data-stop]", form).addEventListener("click", () => this.stage?.stop());
    this.tools = form.elements.tools;
    this.tools?.addEventListener("change", () => this.checkTools());
    this.turns.addEventListener("click", ({ target }) => target.closest("[data-send-results]") && this.sendResults(target.closest("[data-calls]")));
    this.offerResults();
    this.question.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) form.requestSubmit($("[data-go]", form));
    });
    for (const root of $$("[data-follow]", this.turns)) {
      this.stage = new Stage(root);
      during(form, () => this.stage.follow(root.dataset.follow, form.dataset.token).then(() => this.ended(this.stage)));
    }
    if (this.stage) this.turns.lastElementChild.scrollIntoView({ block: "start" });
  }

  /** Returns the body of the next question with the id of an earlier run, whose messages the server adds. */
  body(dry) {
    const { replay, again, followRun } = this.form.dataset;
    const body = bodyOf(this.form);
    if (dry) body.orchestration = { ...body.orchestration, dry_run: true };
    const tools = this.tools?.value.trim();
    if (tools) body.tools = JSON.parse(tools);
    else if (this.tools && (again || followRun)) body.tools = [];
    return { ...body, replay, again: followRun ? undefined : again, follow: followRun };
  }

  /** Returns true if the tools are valid; otherwise shows the reason below them. */
  async checkTools() {
    if (!this.tools) return true;
    const fault = await this.faultOfTools(this.tools.value.trim());
    const place = $("#tools-fault", this.form);
    place.textContent = fault;
    place.classList.toggle("failure", Boolean(fault));
    place.hidden = !fault;
    this.tools.setAttribute("aria-invalid", Boolean(fault));
    return !fault;
  }

  /** Returns the fault of the tools, or an empty string; the server checks the tools without calling a worker. */
  async faultOfTools(text) {
    if (!text) return "";
    let tools;
    try {
      tools = JSON.parse(text);
    } catch (error) {
      return `This is not JSON: ${error.message}.`;
    }
    const body = { model: this.form.elements.model.value, messages: [{ role: "user", content: "-" }], tools };
    return (await this.send(body)).fault ?? "";
  }

  /** Returns the complete body of an API request for a body of this page, or the reason why it is invalid. */
  async send(body) {
    const response = await post("/ui/body", body, this.form.dataset.token).catch(() => null);
    const said = await response?.json().catch(() => null);
    return response?.ok ? { body: said } : { fault: said?.error?.message ?? "The server cannot be reached." };
  }

  async ask(dry) {
    if (!(await this.checkTools())) {
      $(".composing", this.form).open = true;
      this.tools.focus();
      return;
    }
    const replays = Boolean(this.form.dataset.replay);
    await this.begin(this.question.value, this.body(dry), () => {
      if (replays) return;
      this.question.value = "";
      this.question.placeholder = "Ask a further question…";
      $(".composing", this.form).open = false;
      attached = [];
      showFiles(this.files);
    });
  }

  /** Shows the fields for results of tool calls, in the latest turn only. */
  offerResults() {
    if ($("[data-go]", this.form).disabled) return;
    const latest = $$(".turn:not([data-failed])", this.turns).at(-1);
    for (const calls of $$("[data-calls]", this.turns)) {
      for (const part of $$("label, .actions", calls)) part.hidden = !latest.contains(calls);
    }
  }

  sendResults(calls) {
    const fields = $$("[data-call]", calls);
    const empty = fields.find((field) => !field.value);
    if (empty) {
      empty.focus();
      return say("Type the result of each call.");
    }
    const messages = fields.map((field) => ({ role: "tool", tool_call_id: field.dataset.call, content: field.value }));
    const { model, orchestration } = bodyOf(this.form);
    const text = fields.map((field) => `Result of ${field.dataset.tool}: ${field.value}`).join("\n");
    return during(this.form, () => this.begin(text, { model, orchestration, messages, results: calls.dataset.calls }, () => {}));
  }

  /** Starts a run and shows it as the next turn. */
  async begin(text, body, onBegin) {
    for (const each of $$("[data-examples]")) each.hidden = true;
    for (const each of $$("[data-failed]", this.turns)) each.remove();
    const turn = $("[data-blank-turn]").content.firstElementChild.cloneNode(true);
    const number = this.turns.childElementCount + 1;
    turn.setAttribute("aria-label", `Turn ${number}`);
    $("[data-asked]", turn).textContent = text;
    if (!body.results) showFiles($("[data-asked-files]", turn), false);
    const root = $("[data-stage]", turn);
    root.dataset.stage = `t${number}`;
    this.turns.append(turn);
    this.offerResults();
    const stage = (this.stage = new Stage(root));
    const replays = Boolean(this.form.dataset.replay);
    stage.onBegin = (id, chat) => {
      moveTo(chat && !replays ? `/ui/chat/${encodeURIComponent(chat)}` : `/ui/runs/${encodeURIComponent(id)}`);
      $("main").classList.add("talking");
      const head = $("[data-chat-head]");
      head.lastElementChild.hidden = false;
      head.firstElementChild.className = "cut";
      if (number === 1) head.firstElementChild.textContent = text;
      onBegin();
    };
    if (number > 1) turn.scrollIntoView({ block: "start", behavior: "smooth" });
    await stage.ask({ ...body, scope: `t${number}` }, this.form.dataset.token);
    if (!stage.id) turn.dataset.failed = "";
    this.ended(stage);
  }

  /** Makes the next question continue this turn; the server leaves out a turn without an answer. */
  ended(stage) {
    this.offerResults();
    if (!stage.id || this.form.dataset.replay) return;
    const answered = $("[data-answer] .answer, [data-answer] pre", stage.root);
    if (answered || !this.form.dataset.followRun) this.form.dataset.followRun = stage.id;
  }

  /** Copies the complete request, to which the server adds the earlier messages. */
  async copy(how) {
    if (!(await this.checkTools())) return say("The tools cannot be sent as they are.");
    let body = this.body(false);
    if (body.follow || body.again) {
      const { body: whole, fault } = await this.send(body);
      if (fault) return say(fault);
      body = whole;
    }
    await copy(how === "curl" ? asCurl(body) : asPython(body));
  }
}

const ask = $("[data-ask]");
if (ask) {
  const chat = new Chat(ask);
  for (const button of $$("[data-copy]", ask)) button.addEventListener("click", () => chat.copy(button.dataset.copy));
  for (const button of $$("[data-example]")) {
    button.addEventListener("click", () => {
      chat.question.value = button.textContent.trim();
      const go = $("[data-go]", ask);
      go.focus();
      ask.requestSubmit(go);
      scrollTo({ top: 0 });
    });
  }
  const input = $("[data-attach]", ask);
  if (input) {
    new Presets(ask);
    const take = (files) => files.length && attach([...files], chat.files);
    input.addEventListener("change", async () => {
      await take(input.files);
      input.value = "";
    });
    chat.question.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      take(event.clipboardData.files);
    });
    ask.addEventListener("dragover", (event) => event.preventDefault());
    ask.addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      take(event.dataTransfer.files);
    });
  }
  const boxes = $$('[name="worker"]', ask);
  const count = () => {
    if (!boxes.length) return;
    const chosen = boxes.filter((box) => box.checked).length;
    $("[data-picked]").textContent = chosen === boxes.length || !chosen ? `all ${boxes.length}` : `${chosen} of ${boxes.length}`;
  };
  ask.addEventListener("change", count);
  count();
}

/* ---- the plan editor ------------------------------------------------------------------ */

/** The form of a plan. The steps that a step reads are stored as form rows, because their numbers change. */
class PlanForm {
  constructor(form) {
    this.form = form;
    this.list = $("[data-steps]", form);
    this.most = Number(form.dataset.most);
    this.reads = new Map();
    const rows = this.rows();
    for (const row of rows) {
      const given = $("[data-reads]", row).dataset.reads;
      this.reads.set(row, new Set(given ? given.split(",").map((at) => rows[Number(at)]) : []));
    }
    this.number();
    form.addEventListener("click", (event) => this.click(event));
    form.addEventListener("input", () => this.price(400));
    this.price(0);
  }

  rows() {
    return $$("[data-step]", this.list);
  }

  click({ target }) {
    const row = target.closest("[data-step]");
    const move = Number(target.closest("[data-move]")?.dataset.move ?? 0);
    if (target.closest("[data-add]")) this.add();
    else if (move) this.move(row, move);
    else if (target.closest("[data-remove]")) this.remove(row);
    else return;
    this.number();
    this.price(0);
  }

  add() {
    const row = $("[data-blank]", this.form).content.firstElementChild.cloneNode(true);
    const before = this.rows();
    this.reads.set(row, new Set(before.slice(-1)));
    this.list.append(row);
    $("[data-worker]", row).focus();
  }

  move(row, by) {
    const other = by < 0 ? row.previousElementSibling : row.nextElementSibling;
    if (!other) return;
    if (by < 0) other.before(row);
    else other.after(row);
    const [first, second] = by < 0 ? [row, other] : [other, row];
    if (this.reads.get(first).delete(second)) say("A step can read only earlier steps, so it no longer reads the step that is now after it.");
    this.held = [row, by];
  }

  remove(row) {
    const beside = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    this.reads.delete(row);
    for (const read of this.reads.values()) read.delete(row);
    (beside ? $("[data-worker]", beside) : $("[data-add]", this.form)).focus();
  }

  number() {
    const rows = this.rows();
    rows.forEach((row, at) => {
      $("[data-number]", row).textContent = at + 1;
      const [up, down] = [-1, 1].map((by) => $(`[data-move="${by}"]`, row));
      [up.disabled, down.disabled] = [at === 0, at === rows.length - 1];
      const box = $("[data-reads]", row);
      const label = create("small", { textContent: at ? "Reads" : "Reads the question only" });
      box.replaceChildren(label, ...rows.slice(0, at).map((other, number) => this.choice(row, other, number + 1)));
    });
    $("[data-add]", this.form).disabled = rows.length >= this.most;
    if (this.held) {
      const [row, by] = this.held;
      const button = $(`[data-move="${by}"]`, row);
      (button.disabled ? $(`[data-move="${-by}"]`, row) : button).focus();
      this.held = null;
    }
  }

  choice(row, other, number) {
    const label = create("label");
    const input = create("input", { type: "checkbox", checked: this.reads.get(row).has(other) });
    input.addEventListener("change", () => this.reads.get(row)[input.checked ? "add" : "delete"](other));
    label.append(input, `step ${number}`);
    return label;
  }

  body() {
    const rows = this.rows();
    const steps = rows.map((row) => ({
      worker: $("[data-worker]", row).value,
      subtask: $("[data-subtask]", row).value,
      access: rows.map((other, at) => (this.reads.get(row).has(other) ? at : -1)).filter((at) => at >= 0),
    }));
    const most = number($("[data-most-cost]", this.form).value);
    return { edit: this.form.dataset.plan, model: this.form.dataset.model, orchestration: { workflow: { steps }, max_cost_usd: most } };
  }

  price(wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.preview(), wait);
  }

  /** Shows the current plan with its price; responses to earlier states of the plan are ignored. */
  async preview() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const place = $("[data-preview]", this.form);
    place.setAttribute("aria-busy", "true");
    const response = await post("/ui/plan", this.body(), this.form.dataset.token).catch(() => null);
    const text = response?.ok ? await response.text() : (await response?.json().catch(() => null))?.error?.message;
    if (turn !== this.turn) return;
    place.setAttribute("aria-busy", "false");
    if (response?.ok) place.innerHTML = text;
    else {
      place.replaceChildren(create("p", { className: "failure", textContent: text ?? "The server cannot be reached." }));
    }
  }
}

const planning = $("[data-plan]");
if (planning) {
  const [plan, stage] = [new PlanForm(planning), new Stage($("[data-stage]"))];
  stage.onBegin = (id) => {
    moveTo(`/ui/runs/${encodeURIComponent(id)}`);
    stage.root.scrollIntoView({ block: "start", behavior: "smooth" });
  };
  planning.addEventListener("submit", (event) => {
    event.preventDefault();
    during(planning, () => stage.ask(plan.body(), planning.dataset.token));
  });
  $("[data-stop]", planning).addEventListener("click", () => stage.stop());
}

document.addEventListener("click", (event) => {
  for (const details of $$("details.pick[open]")) if (!details.contains(event.target)) details.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const details of $$("details.pick[open]")) details.open = false;
});

const compare = $("[data-compare]");
if (compare) {
  const sides = $$("[data-versus] [data-stage]").map((root) => new Stage(root));
  /** The sides with a system; the other sides are hidden. */
  let active = sides.filter((side) => side.root.dataset.follow);
  compare.addEventListener("submit", async (event) => {
    event.preventDefault();
    const fields = ["first", "second", "third", "fourth"].map((name) => [name, compare.elements[name].value]).filter(([, value]) => value);
    const question = compare.elements.question.value;
    $("[data-stored]")?.remove();
    $("[data-versus]").hidden = false;
    $("[data-difference]").replaceChildren();
    active = sides.slice(0, fields.length);
    for (const side of sides) {
      side.id = null;
      side.root.closest(".side").hidden = !active.includes(side);
    }
    fields.forEach(([, name], at) => ($(`[data-side="${"abcd"[at]}"]`).textContent = name));
    all((side, at) => side.ask({ model: fields[at][1], messages: [{ role: "user", content: question }], scope: "abcd"[at] }, compare.dataset.token));
  });
  const ids = () => new URLSearchParams(active.filter((side) => side.id).map((side, at) => ["abcd"[at], side.id]));
  for (const side of sides) {
    side.onBegin = (id) => {
      side.id = id;
      if (active.every((each) => each.id)) moveTo(`/ui/compare?${ids()}`);
    };
  }
  /** Shows all runs until they end, and then their differences. */
  const all = async (show) => {
    await during(compare, () => Promise.all(active.map(show)));
    if (!active.every((side) => side.id)) return;
    $("[data-difference]").innerHTML = (await fragment(`/ui/compare/figures?${ids()}`)) ?? "";
  };
  if (active.length) all((side) => side.follow(side.root.dataset.follow, compare.dataset.token));
  $("[data-stop]", compare).addEventListener("click", () => sides.forEach((side) => side.stop()));
}

/* ---- up to ten questions to two systems --------------------------------------------------- */

/** Sends each question to each system, four runs at a time, and shows the table of the runs. */
class QuestionTable {
  constructor(form) {
    this.form = form;
    form.addEventListener("input", () => this.bound());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.bound()) during(form, () => this.ask());
    });
    $("[data-stop]", form).addEventListener("click", () => this.stop());
    this.bound();
  }

  questions() {
    return [...new Set(this.form.elements.questions.value.split("\n").map((line) => line.trim()).filter(Boolean))];
  }

  systems() {
    return [...new Set(["first", "second"].map((name) => this.form.elements[name].value))];
  }

  /** Shows the maximum cost; returns true if the questions can be asked. */
  bound() {
    const [questions, systems, each] = [this.questions().length, this.systems().length, Number(this.form.elements.each.value)];
    const runs = questions * systems;
    const fits = questions > 0 && questions <= 10 && systems === 2 && each > 0;
    const dollars = (runs * each).toLocaleString("en", { maximumFractionDigits: 4 });
    let text = `${questions} question${questions === 1 ? "" : "s"} × ${systems} systems = ${runs} runs, at most $${dollars} together.`;
    if (!questions) text = "Each run stops before its cost exceeds the limit.";
    if (questions > 10) text = `${questions} questions are too many: at most ten.`;
    if (systems < 2) text = "Choose two different systems.";
    $("[data-bound]", this.form).textContent = text;
    $('button[type="submit"]', this.form).disabled = this.form.dataset.closed !== undefined || !fits;
    return fits;
  }

  async ask() {
    const each = Number(this.form.elements.each.value);
    this.halt = false;
    this.cells = this.questions().flatMap((question) => this.systems().map((model) => ({ question, model, id: "" })));
    $("[data-failures]", this.form).replaceChildren();
    $("[data-table]", this.form).replaceChildren();
    const waiting = [...this.cells];
    const work = async () => {
      for (let cell; !this.halt && (cell = waiting.shift()); ) await this.run(cell, each);
    };
    await Promise.all(Array.from({ length: 4 }, work));
    await this.show();
  }

  async run(cell, each) {
    const body = { model: cell.model, messages: [{ role: "user", content: cell.question }], orchestration: { max_cost_usd: each } };
    try {
      const response = await post("/ui/ask", body, this.form.dataset.token);
      if (!response.ok) throw new Error((await response.json().catch(() => null))?.error?.message ?? `The server answered ${response.status}.`);
      cell.id = decodeURIComponent(new URL(response.url).pathname.split("/")[3]);
      if (this.halt) stopRun(cell.id, this.form.dataset.token);
      moveTo(this.address(), this.cells.filter(({ id }) => id).length > 1);
      for await (const [name, data] of events(response)) if (name === "failed") this.fail(cell, data.message);
    } catch (error) {
      this.fail(cell, error.message);
    }
    this.show();
  }

  fail(cell, text) {
    const line = `${cell.model}, “${cell.question.slice(0, 60)}”: ${text}`;
    $("[data-failures]", this.form).append(create("li", { className: "failure", textContent: line }));
  }

  address() {
    return `/ui/compare/table?${new URLSearchParams(this.cells.filter((cell) => cell.id).map((cell) => ["run", cell.id]))}`;
  }

  async show() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    if (!this.cells.some((cell) => cell.id)) return;
    const text = await fragment(`${this.address()}&part=1`);
    if (text && turn === this.turn) $("[data-table]", this.form).innerHTML = text;
  }

  stop() {
    this.halt = true;
    for (const { id } of this.cells) if (id) stopRun(id, this.form.dataset.token);
  }
}

const many = $("[data-many]");
if (many) new QuestionTable(many);

for (const root of $$("main > [data-follow]")) {
  new Stage(root).follow(root.dataset.follow).then(() => {
    for (const each of $$("[data-while-running]")) each.hidden = true;
  });
}

if (!/Mac|iP/.test(navigator.platform)) for (const key of $$("main kbd")) key.textContent = "Ctrl ↵";

/* ---- judgements, filters and selected runs ----------------------------------------------- */

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("[data-feedback]")) return;
  event.preventDefault();
  const data = new URLSearchParams(new FormData(form, event.submitter));
  const outerHTML = await fragment(form.action, { method: "POST", headers: { "x-fragment": "1" }, body: data });
  if (outerHTML === null) return say("The judgement could not be stored: reload the page, then try again.");
  const [parent, at] = [form.parentElement, $$("button", form).indexOf(event.submitter)];
  form.outerHTML = outerHTML;
  $$("[data-feedback] button", parent)[at]?.focus();
  say(data.get("score") === "" ? "Judgement removed." : "Thank you: stored for training.");
});

for (const select of $$("[data-filters] select")) select.addEventListener("change", () => select.form.requestSubmit());
/* Empty filters are left out of the URL. */
for (const form of $$("[data-filters]")) {
  form.addEventListener("formdata", ({ formData }) => {
    for (const [name, value] of [...formData]) if (!value.trim()) formData.delete(name);
  });
}

for (const form of $$("[data-choose]")) {
  const boxes = () => [...form.elements].filter((box) => box.name === "run");
  const every = $("[data-choose-all]", form);
  const count = () => {
    const chosen = boxes().filter((box) => box.checked).length;
    for (const button of $$("[data-least]", form)) {
      button.disabled = chosen < Number(button.dataset.least) || chosen > Number(button.dataset.atMost ?? Infinity);
    }
    every.checked = chosen > 0 && chosen === boxes().length;
    every.indeterminate = chosen > 0 && !every.checked;
    form.toggleAttribute("data-some", chosen > 0);
    $("[data-chosen]", form).textContent = chosen ? `${chosen} chosen${chosen > 4 ? "; at most 4 are compared" : ""}` : "";
  };
  every.addEventListener("change", () => {
    for (const box of boxes()) box.checked = every.checked;
    count();
  });
  document.addEventListener("change", (event) => event.target.form === form && count());
  addEventListener("pageshow", count);
}

/* ---- the keyboard ------------------------------------------------------------------------ */

const shortcuts = $("[data-shortcuts-dialog]");
if (shortcuts) {
  const box = $("[data-shortcuts-on]", shortcuts);
  const rows = () => $$(".runs .what a");
  const screens = { r: "/ui/runs", a: "/ui/", p: "/ui/pool" };
  let gone = 0;
  box.checked = !document.cookie.includes("shortcuts=off");
  box.addEventListener("change", () => {
    document.cookie = `shortcuts=${box.checked ? "on" : "off"}; path=/; max-age=31536000; samesite=strict`;
  });
  const step = (by) => {
    const links = rows();
    const at = links.indexOf(document.activeElement);
    links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(Math.max(at + by, 0), links.length - 1)]?.focus();
  };
  const acts = {
    "/": () => $("[data-search], #question")?.focus(),
    "?": () => shortcuts.showModal(),
    j: () => step(1),
    k: () => step(-1),
    g: () => (gone = Date.now()),
  };
  $("[data-shortcuts]").addEventListener("click", () => shortcuts.showModal());
  document.addEventListener("keydown", (event) => {
    const busy = event.target.closest("input, textarea, select, [contenteditable], dialog");
    if (busy || !box.checked || event.ctrlKey || event.metaKey || event.altKey) return;
    const after = Date.now() - gone < 1000;
    gone = 0;
    if (after && screens[event.key]) location.href = screens[event.key];
    else if (acts[event.key]) {
      event.preventDefault();
      acts[event.key]();
    }
  });
}

/* ---- curves ----------------------------------------------------------------------------- */

/** The charts of a screen, which share one smoothing and one zoom. */
const charts = {
  smoothing: 0,
  from: 0,
  to: 1,

  /** Returns the visible part of a chart: its steps, and the smoothed values of each curve. */
  part(figure) {
    const { steps, curves, joins, unit, axis } = JSON.parse(figure.dataset.chart);
    const [first, end] = [this.from, this.to].map((share) => Math.round(share * (steps.length - 1)));
    const smooth = (values) => {
      let before = null;
      return values.map((value) => {
        if (value === null) return null;
        return (before = before === null ? value : this.smoothing * before + (1 - this.smoothing) * value);
      });
    };
    const shown = curves.map(({ name, values }) => ({ name, values: smooth(values).slice(first, end + 1) }));
    return { steps: steps.slice(first, end + 1), curves: shown, joins, unit, axis };
  },

  short(value) {
    return Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
  },

  withUnit(text, unit) {
    return unit === "$" ? `$${text}` : unit ? `${text}\u00a0${unit}` : text;
  },

  tell(value, unit) {
    return this.withUnit(this.short(unit === "%" ? 100 * value : value), unit);
  },

  /** Returns a few evenly spaced round numbers that enclose the values, like `find_ticks` of the server. */
  ticks(low, high) {
    if (low === high) [low, high] = [Math.min(low, 0), Math.max(high, 0) || (low < 0 ? 0 : 1)];
    const power = 10 ** Math.floor(Math.log10((high - low) / 4));
    for (const size of [1, 2, 5, 10, 20]) {
      const step = size * power;
      const [first, last] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
      if (last - first <= 4) return Array.from({ length: last - first + 1 }, (_, at) => (first + at) * step);
    }
    return [low, high];
  },

  heights(ticks, unit) {
    const scale = unit === "%" ? 100 : 1;
    const digits = Math.min(Math.max(0, -Math.floor(Math.log10((ticks[1] - ticks[0]) * scale) + 1e-9)), 9);
    const format = (tick) => (tick * scale).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    return ticks.toReversed().map((tick) => this.withUnit(format(tick), unit));
  },

  /** Returns the labelled steps, each with its position as a fraction of the width. */
  places(steps) {
    const [first, end] = [steps[0], steps.at(-1)];
    const marks = [[0, first]];
    for (const step of end > first ? this.ticks(first, end) : []) {
      const at = steps.findIndex((each) => each >= step);
      const place = at < 1 ? 0 : (at - 1 + (step - steps[at - 1]) / (steps[at] - steps[at - 1])) / (steps.length - 1);
      if (Number.isInteger(step) && place > 0.18 && place < 0.82) marks.push([place, step]);
    }
    return end > first ? [...marks, [1, end]] : marks;
  },

  path(values, low, high, joins) {
    const [across, spread] = [Math.max(values.length - 1, 1), high - low || 1];
    let [path, broken] = ["", true];
    values.forEach((value, at) => {
      if (value !== null) path += `${broken ? "M" : "L"}${((300 * at) / across).toFixed(1)} ${(100 * (1 - (value - low) / spread)).toFixed(1)}`;
      broken = value === null && !(joins && path);
    });
    return path;
  },

  redraw() {
    for (const figure of $$("[data-chart]")) {
      const { steps, curves, joins, unit, axis } = this.part(figure);
      const known = curves.flatMap(({ values }) => values.filter((value) => value !== null));
      if (!known.length) continue;
      const ticks = this.ticks(Math.min(...known), Math.max(...known));
      const [low, high] = [ticks[0], ticks.at(-1)];
      $$(".curve", figure).forEach((curve, at) => curve.setAttribute("d", this.path(curves[at].values, low, high, joins)));
      $(".grid", figure).setAttribute("d", ticks.map((_, at) => `M0 ${((100 * at) / (ticks.length - 1)).toFixed(1)}H300`).join(""));
      $(".heights", figure).replaceChildren(...this.heights(ticks, unit).map((text) => create("span", { textContent: text })));
      $(".axis", figure).replaceChildren(...this.places(steps).map(([place, step], at) => {
        const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
        text.setAttribute("x", `${(100 * place).toFixed(1)}%`);
        text.setAttribute("y", 11);
        text.textContent = `${at ? "" : `${axis} `}${step.toLocaleString("en").replaceAll(",", "\u202f")}`;
        return text;
      }));
    }
    const out = $("[data-zoom-out]");
    if (out) out.hidden = this.from === 0 && this.to === 1;
  },

  /** Shows the values at a position of a chart, as text and with a vertical line. */
  point(figure, at) {
    const { steps, curves, unit, axis } = this.part(figure);
    const place = Math.min(Math.max(at, 0), steps.length - 1);
    const values = curves.map(({ name, values }) => `${curves.length > 1 ? `${name} ` : ""}${values[place] === null ? "–" : this.tell(values[place], unit)}`);
    const text = `${axis} ${steps[place]}: ${values.join(" · ")}`;
    const slider = $("svg", figure);
    slider.setAttribute("aria-valuenow", steps[place]);
    slider.setAttribute("aria-valuetext", text);
    $("output", figure).textContent = text;
    $(".cursor", figure).setAttribute("d", `M${((300 * place) / Math.max(steps.length - 1, 1)).toFixed(1)} 0V100`);
    figure.dataset.at = place;
  },

  zoom(from, to) {
    [this.from, this.to] = to - from < 0.01 ? [0, 1] : [Math.max(from, 0), Math.min(to, 1)];
    this.redraw();
  },
};

if ($("[data-smoothing]")) {
  const share = (svg, event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  };
  const within = (part) => charts.from + part * (charts.to - charts.from);
  const figureOf = (event) => event.target.closest?.("[data-chart] .plot svg")?.closest("[data-chart]");
  let dragged = null;
  document.addEventListener("pointermove", (event) => {
    const figure = figureOf(event);
    if (figure) charts.point(figure, Math.round(share($("svg", figure), event) * (charts.part(figure).steps.length - 1)));
  });
  document.addEventListener("pointerdown", (event) => {
    const figure = figureOf(event);
    dragged = figure && { svg: $("svg", figure), share: share($("svg", figure), event) };
  });
  document.addEventListener("pointerup", (event) => {
    if (!dragged) return;
    const ends = [dragged.share, share(dragged.svg, event)].sort((one, other) => one - other);
    dragged = null;
    if (ends[1] - ends[0] > 0.03) charts.zoom(within(ends[0]), within(ends[1]));
  });
  document.addEventListener("keydown", (event) => {
    const figure = figureOf(event);
    if (!figure) return;
    const last = charts.part(figure).steps.length - 1;
    const at = Number(figure.dataset.at ?? last);
    const places = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last };
    const middle = within(last ? at / last : 0);
    const half = (charts.to - charts.from) / 4;
    if (event.key in places) charts.point(figure, places[event.key]);
    else if (event.key === "+") charts.zoom(middle - half, middle + half);
    else if (event.key === "-" || event.key === "Escape") charts.zoom(0, 1);
    else return;
    event.preventDefault();
  });
  $("[data-smoothing]").addEventListener("input", (event) => {
    charts.smoothing = Number(event.target.value);
    charts.redraw();
  });
  $("[data-zoom-out]").addEventListener("click", () => charts.zoom(0, 1));
}

/* A live section is refreshed every 3 seconds, unless the page is hidden, or the section has the focus or
   the pointer over a chart. */
for (const live of $$("[data-live]")) {
  const again = async () => {
    if (!document.hidden && !live.contains(document.activeElement) && !$(".plot svg:hover", live)) {
      const text = await fragment(live.dataset.live);
      if (text !== null) {
        live.innerHTML = text;
        if (charts.smoothing || charts.from || charts.to < 1) charts.redraw();
      }
    }
    setTimeout(again, 3000);
  };
  setTimeout(again, 3000);
}

$("[data-copy-secret]")?.addEventListener("click", () => copy($("[data-secret]").textContent));
document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.sure ?? event.target.dataset.sure;
  if (question && !confirm(question)) event.preventDefault();
});
