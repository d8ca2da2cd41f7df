// Run by node. `fill DSN JOBS` queues them, `drain DSN` works them off with batched acks, which is
// the fastest graphile-worker can do and runs finished work again after a crash. `tell DSN` prints
// how long each job of `enqueue DSN JOBS` waited for its start.
import { createRequire } from "node:module";
const require = createRequire(process.env.PEER_HOME + "/package.json");
const { run, runMigrations, makeWorkerUtils } = require("graphile-worker");
const { Logger } = require("@graphile/logger");
const { Pool } = require("pg");
const { EventEmitter } = require("node:events");

const [what, connectionString, jobs] = process.argv.slice(2);
const seconds = () => Number(process.hrtime.bigint()) / 1e9;
const logger = new Logger(() => () => {});
const worker = {
  concurrentJobs: 24,
  maxPoolSize: 8,
  pollInterval: 100,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};

if (what === "fill") {
  await runMigrations({ connectionString, logger });
  const pool = new Pool({ connectionString });
  await pool.query(
    "select graphile_worker.add_jobs(array(select row('bench', '{}', null, null, null, null, null, " +
      "null)::graphile_worker.job_spec from generate_series(1, $1)))",
    [Number(jobs)],
  );
  await pool.query("analyze");
  await pool.end();
} else if (what === "enqueue") {
  const utils = await makeWorkerUtils({ connectionString, logger });
  for (let n = 0; n < Number(jobs); n++) {
    await utils.addJob("bench", { at: seconds() });
    await new Promise((resolve) => setTimeout(resolve, 30 + 30 * Math.random()));
  }
  await utils.release();
} else if (what === "tell") {
  await run({
    connectionString,
    logger,
    preset: { worker },
    taskList: { bench: async ({ at }) => void process.stdout.write(`${seconds() - at}\n`) },
  });
} else {
  const events = new EventEmitter();
  const told = { jobs: 0, begin: 0, end: 0 };
  let empty;
  const drained = new Promise((resolve) => (empty = resolve));
  // The local queue asks again when it ran dry; nothing twice in a row is the end.
  let dry = 0;
  events.on("localQueue:getJobs:complete", ({ jobs }) => {
    dry = jobs.length === 0 ? dry + 1 : 0;
    if (dry > 1) empty();
  });
  const runner = await run({
    connectionString,
    logger,
    events,
    noHandleSignals: true,
    preset: { worker },
    taskList: {
      bench: async () => {
        told.begin ||= seconds();
        told.jobs += 1;
      },
    },
  });
  await drained;
  await runner.stop();
  told.end = seconds();
  process.stdout.write(JSON.stringify(told));
}
