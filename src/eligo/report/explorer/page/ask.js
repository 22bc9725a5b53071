// Questions to the live server: the newest counts, older ones are dropped.

const WAIT = { soon: 120, typing: 450, now: 0 }; // milliseconds without a change before one is sent
const BUSY = new Set([429, 503]);

export function makeAsker({ path, onstart, onanswer, onerror }) {
  let [timer, running] = [0, null];

  async function send(body) {
    running?.abort();
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
  return (body, pace = "now") => {
    clearTimeout(timer);
    if (pace === "now") send(body());
    else timer = setTimeout(() => send(body()), WAIT[pace]);
  };
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
  if (reply.ok && found.exhibit) return found;
  if (BUSY.has(reply.status)) throw new Error(found.error ?? "The server is busy; try again soon.");
  throw new Error(found.error ?? `The server answered with status ${reply.status}.`);
}
