// JSON whose integers are exact: those that a number cannot hold are `bigint`.

export type Json =
  | null
  | boolean
  | number
  | bigint
  | string
  | readonly Json[]
  | { readonly [name: string]: Json | undefined };

/** Begins a text that stands for an integer. It is random, so that no payload can hold it. */
const MARK = `bigint:${crypto.randomUUID()}:`;
/** A text, or a number outside of texts, which a valid document has nowhere else. */
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const MARKED = new RegExp(`"${MARK}(-?\\d+)"`, "g");

export function parseJson(text: string): unknown {
  let isMarked = false;
  const marked = text.replace(TOKEN, (token) => {
    if (token.length < 16 || !/^-?\d+$/.test(token) || Number.isSafeInteger(Number(token))) {
      return token;
    }
    isMarked = true;
    return `"${MARK}${token}"`;
  });
  if (!isMarked) {
    return JSON.parse(text);
  }
  return JSON.parse(marked, (_, value: unknown) =>
    typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value,
  );
}

export function writeJson(value: unknown): string {
  let isMarked = false;
  const text = JSON.stringify(value, (_, one: unknown) => {
    if (typeof one === "bigint") {
      isMarked = true;
      return `${MARK}${one}`;
    }
    return one;
  });
  return isMarked ? text.replace(MARKED, "$1") : text;
}
