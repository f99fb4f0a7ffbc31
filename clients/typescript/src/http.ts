// Sends calls, reads their answers, and repeats the calls that may be repeated.

import { setTimeout as sleep } from "node:timers/promises";

import type { Call } from "./calls.js";
import { KeyfallError, type Problem } from "./errors.js";
import { parseJson, writeJson } from "./json.js";

/** The longest pause before a repeat in milliseconds, unless the daemon asks for a longer one. */
const LONGEST_PAUSE = 5_000;
/** The longest time of a timer in milliseconds. */
const LONGEST_TIMEOUT = 2 ** 31 - 1;
/** The codes of errors after which a call may have been carried out. */
const UNCERTAIN = new Set(["no_answer", "outcome_unknown", "not_keyfall"]);
/** What the system says where no connection came about. */
const NOT_CONNECTED = new Set([
  "ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT",
]);

export interface HttpSettings {
  readonly url: string;
  readonly token: string | undefined;
  readonly timeout: number;
  readonly retries: number;
  readonly fetch: typeof fetch;
}

/** How a single call is sent. */
export interface SendOptions {
  readonly retries?: number;
  readonly timeout?: number;
  readonly signal?: AbortSignal | undefined;
}

/** A request that was answered, with the whole text of the answer. */
interface Answer {
  readonly response: Response;
  readonly text: string;
}

export class Http {
  readonly #settings: HttpSettings;

  constructor(settings: HttpSettings) {
    this.#settings = settings;
  }

  get retries(): number {
    return this.#settings.retries;
  }

  async send<T>(call: Call<T>, options: SendOptions = {}): Promise<T> {
    const { retries = this.#settings.retries, signal } = options;
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#sendOnce(call, options);
      } catch (error) {
        if (!(error instanceof KeyfallError) || attempt > retries || !mayRepeat(call, error)) {
          throw error;
        }
        await sleep(pause(attempt, error.retryAfter), undefined, { signal });
      }
    }
  }

  async #sendOnce<T>(call: Call<T>, options: SendOptions): Promise<T> {
    const { response, text } = await this.#request(call.method, pathOf(call), {
      body: call.body === undefined ? undefined : writeJson(call.body),
      kind: "application/json",
      timeout: (options.timeout ?? this.#settings.timeout) + (call.holds ?? 0),
      signal: options.signal,
    });
    if (response.ok) {
      try {
        return call.read(text === "" ? undefined : parseJson(text));
      } catch (cause) {
        throw notKeyfall(response, "with something else", { cause });
      }
    }
    const error = refusal(response, text);
    if (call.means !== undefined && error.code in call.means) {
      return call.means[error.code] as T;
    }
    throw error;
  }

  /**
   * Sends lines; what has come of the answers counts, also if the rest is lost. The time counts anew with
   * each part of the answers: under a rate limit the daemon takes long for all of them.
   */
  async sendLines(lines: string, signal: AbortSignal | undefined): Promise<string | KeyfallError> {
    const parts: string[] = [];
    try {
      const { response, text } = await this.#request("POST", "/v1/batch", {
        body: lines,
        kind: "application/x-ndjson",
        timeout: this.#settings.timeout,
        signal,
        onPart: (part) => parts.push(part),
      });
      return response.ok ? text : refusal(response, text);
    } catch (error) {
      if (error instanceof KeyfallError && parts.length > 0) {
        return parts.join("");
      }
      if (error instanceof KeyfallError) {
        return error;
      }
      throw error;
    }
  }

  async #request(
    method: string,
    path: string,
    options: {
      body: string | undefined;
      kind: string;
      timeout: number;
      signal: AbortSignal | undefined;
      onPart?: (part: string) => void;
    },
  ): Promise<Answer> {
    const { url, token } = this.#settings;
    const headers = new Headers();
    if (options.body !== undefined) {
      headers.set("content-type", options.kind);
    }
    if (token !== undefined) {
      headers.set("authorization", `Bearer ${token}`);
    }
    const limit = new AbortController();
    const late = (): void => limit.abort(new Error(`no answer within ${options.timeout} ms`));
    const timer = setTimeout(late, Math.min(options.timeout, LONGEST_TIMEOUT));
    const signals = options.signal === undefined ? [] : [options.signal];
    const signal = AbortSignal.any([limit.signal, ...signals]);
    try {
      const response = await this.#settings.fetch(new URL(path, url), {
        method,
        headers,
        body: options.body ?? null,
        redirect: "manual",
        signal,
      });
      let text = "";
      const decoder = new TextDecoder();
      for await (const bytes of response.body ?? []) {
        const part = decoder.decode(bytes as Uint8Array, { stream: true });
        if (options.onPart !== undefined) {
          options.onPart(part);
          timer.refresh();
        }
        text += part;
      }
      return { response, text };
    } catch (fault) {
      options.signal?.throwIfAborted();
      throw failure(fault, url);
    } finally {
      clearTimeout(timer);
    }
  }
}

function pathOf(call: Call<unknown>): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(call.params ?? {})) {
    if (value !== undefined) {
      params.set(name, String(value));
    }
  }
  return params.size === 0 ? call.path : `${call.path}?${params}`;
}

/** The error of an answer that is no success. */
function refusal(response: Response, text: string): KeyfallError {
  const after = response.headers.get("retry-after") ?? "";
  const retryAfter = /^\d+$/.test(after) ? Number(after) * 1000 : undefined;
  if (response.headers.get("content-type") === "application/problem+json") {
    const problem = problemOf(text);
    return problem === undefined
      ? notKeyfall(response, "with the problem of another program", { retryAfter })
      : new KeyfallError(problem, { retryAfter });
  }
  return notKeyfall(response, "without a problem document", { retryAfter });
}

function problemOf(text: string): Problem | undefined {
  try {
    const problem = parseJson(text) as Partial<Problem>;
    return problem.code === undefined ? undefined : (problem as Problem);
  } catch {
    return undefined;
  }
}

/** The error of an answer that a daemon does not give. */
function notKeyfall(
  response: Response,
  how: string,
  more: { retryAfter?: number | undefined; cause?: unknown },
): KeyfallError {
  const { status, url } = response;
  const detail =
    `${url} answered ${status} ${how}: is this the address of a Keyfall daemon, and which proxy answers ` +
    "in its place?";
  // A proxy may answer so while it cannot reach the daemon.
  const retryable = [502, 503, 504].includes(status);
  return new KeyfallError(
    { code: "not_keyfall", title: "Something else answered", detail, status, retryable },
    more,
  );
}

/** The error of a request without an answer. */
function failure(fault: unknown, url: string): KeyfallError {
  const causes = [fault, (fault as { cause?: unknown }).cause] as { code?: string; message?: string }[];
  const reason = causes.map((one) => one?.code ?? one?.message ?? "").filter(Boolean).join(": ");
  if (causes.some((one) => NOT_CONNECTED.has(one?.code ?? ""))) {
    const detail = `no daemon answers at ${url}: ${reason}; start \`keyfall serve\`, or name its URL`;
    return new KeyfallError({ code: "unreachable", detail, retryable: true }, { cause: fault });
  }
  const detail = `the answer from ${url} was lost, and the call may have been carried out: ${reason}`;
  return new KeyfallError({ code: "no_answer", detail, retryable: true }, { cause: fault });
}

function mayRepeat(call: Call<unknown>, error: KeyfallError): boolean {
  return error.retryable && ((call.repeatable ?? true) || !UNCERTAIN.has(error.code));
}

/** The milliseconds before a repeat: a random part of a doubling time, or what the daemon asks for. */
export function pause(attempt: number, retryAfter = 0): number {
  const longest = Math.min(LONGEST_PAUSE, 100 * 2 ** Math.min(attempt, 10));
  return retryAfter + longest * (0.1 + 0.9 * Math.random());
}
