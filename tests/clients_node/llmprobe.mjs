// llmprobe's conformance suite, unchanged, on every model of a gateway over scripted workers.
// From the repository: npm --prefix tests/clients_node install && npm --prefix tests/clients_node run probe
// What it calls capability is that of the scripted workers, which have none; it is not looked at.
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, "..", "..");
const BY_CHOICE = {
  "responses-sse-missing-done":
    "a stream of the Responses API ends with response.completed, as OpenAI's does, and has no [DONE]",
};
const OF_A_WORKFLOW = {
  "chat-usage-total": "total_tokens counts every call of the workflow, prompt and completion those of the answer",
  "responses-usage-total": "total_tokens counts every call of the workflow, input and output those of the answer",
};
const python = process.env.PYTHON ?? join(root, ".venv", "bin", "python");
const home = mkdtempSync(join(tmpdir(), "llmprobe-"));

function probe(url, model) {
  const saved = join(home, `${model.replaceAll("/", "_")}.json`);
  const bin = join(here, "node_modules", "llmprobe", "bin", "dist", "llmprobe.mjs");
  const options = ["--no-bench", "--no-save", "--no-color", "--timeout", "60", "--save", saved];
  spawnSync(process.execPath, [bin, url, "-m", model, ...options], {
    env: { ...process.env, HOME: home },
    stdio: "ignore",
  });
  return JSON.parse(readFileSync(saved, "utf8"));
}

function report(model, { conformance, coverage }) {
  const core = coverage.byTier.find((tier) => tier.tier === "core");
  console.log(`${model}: core ${core.supported}/${core.total}, MUST ${conformance.passed}/${conformance.total}`);
  for (const { surface, passed, total } of conformance.bySurface) console.log(`  ${surface} ${passed}/${total}`);
  let wrong = core.total - core.supported;
  const failures = conformance.results.flatMap((one) => one.failures);
  for (const { id, severity, message } of failures.filter((one) => one.severity === "MUST")) {
    const reason = BY_CHOICE[id] ?? (model === "batuta-ultra" ? OF_A_WORKFLOW[id] : undefined);
    if (!reason) wrong += 1;
    console.log(`  ${reason ? "by choice" : "FAIL"} ${id} (${severity}): ${reason ?? message}`);
  }
  const missing = conformance.results.filter((one) => one.outcome === "unsupported");
  console.log(`  not offered: ${missing.map((one) => one.id).join(", ")}`);
  return wrong;
}

const server = spawn(python, [join(here, "server.py")], { stdio: ["ignore", "pipe", "inherit"] });
let wrong = 0;
try {
  const url = String((await once(server.stdout, "data"))[0]).trim();
  const { data } = await (await fetch(`${url}/v1/models`)).json();
  for (const { id } of data.filter((one) => !one.id.startsWith("baseline/"))) wrong += report(id, probe(url, id));
} finally {
  server.kill();
}
console.log(wrong ? `${wrong} failed` : "all passed, or failed by choice");
process.exit(wrong ? 1 : 0);
