// Requests to the live server: a new one replaces those before it.

const WAIT = { soon: 120, typing: 450, now: 0 }; // milliseconds without a change before a request is sent
const BUSY = 503;

// `request(body, pace)` sends the value of `body()` after the pause of `pace`; `drop()` cancels all
// pending requests, whose answers and errors are then ignored.
export function makeRequester({ path, onstart, onanswer, onerror }) {
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
      const reply = await post(path, body, signal);
      if (!signal.aborted) onanswer(reply, body);
    } catch (error) {
      if (!signal.aborted) onerror(error.message);
    }
  }
  function request(body, pace = "now") {
    clearTimeout(timer);
    if (pace === "now") send(body());
    else timer = setTimeout(() => send(body()), WAIT[pace]);
  }
  return { request, drop };
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
  const content = await reply.json().catch(() => ({}));
  if (reply.ok && content.record) return content;
  if (reply.status === BUSY)
    throw new Error(content.error ?? "The server is busy; try again soon.");
  throw new Error(content.error ?? `The server answered with status ${reply.status}.`);
}
