// Questions to the live server: the newest counts, older ones are dropped.

const WAIT = { soon: 120, typing: 450, now: 0 }; // milliseconds without a change before one is sent
const BUSY = 503;

// `ask(body, pace)` sends what `body()` is by then; `drop()` forgets what is on its way, both there
// and back: neither its answer nor its error will be heard.
export function makeAsker({ path, onstart, onanswer, onerror }) {
  let [timer, running] = [0, null];

  function drop() {
    clearTimeout(timer);
    running?.abort();
  }
  async function send(body) {
    drop();
    running = new AbortController();
    const { signal } = running;
    onstart();
    try {
      const found = await post(path, body, signal);
      if (!signal.aborted) onanswer(found, body);
    } catch (error) {
      if (!signal.aborted) onerror(error.message);
    }
  }
  function ask(body, pace = "now") {
    clearTimeout(timer);
    if (pace === "now") send(body());
    else timer = setTimeout(() => send(body()), WAIT[pace]);
  }
  return { ask, drop };
}

async function post(path, body, signal) {
  let reply;
  try {
    reply = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  } catch {
    throw new Error("The server does not answer. Is eligo explore --live still running?");
  }
  const found = await reply.json().catch(() => ({}));
  if (reply.ok && found.record) return found;
  if (reply.status === BUSY) throw new Error(found.error ?? "The server is busy; try again soon.");
  throw new Error(found.error ?? `The server answered with status ${reply.status}.`);
}
