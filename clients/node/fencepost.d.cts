/** Milliseconds, or a text such as `"500ms"`, `"30s"`, `"1m30s"`, `"24h"`. */
export type Duration = number | string;

export interface ClientOptions {
  /** The access token. By default the variable FENCEPOST_SERVICE_TOKEN. */
  token?: string;
  /** A file with the access token. It is read again when the service refuses the token. */
  tokenFile?: string;
  /** A file with the authority that has signed the certificate of the service, in PEM. */
  caFile?: string;
  /** For locks without one of their own. */
  ttl?: Duration;
  /** For locks without one of their own. */
  holder?: string;
}

export interface LockOptions {
  /** How long to wait. By default without a limit; 0 tries once. */
  wait?: Duration;
  /** Ends the wait, not the lock: the request is withdrawn, and its reason is thrown. */
  signal?: AbortSignal;
  /** How long the lock outlives this process, by default 30 s. The lock is renewed each third of that time. */
  ttl?: Duration;
  /** `shared`: readers share the lock, and a writer (`exclusive`, the default) is alone. */
  mode?: 'exclusive' | 'shared';
  /** As many holders as there are permits. All callers give the same number. */
  permits?: number;
  /** How many of the permits, by default 1. */
  take?: number;
  /** What operators see as the holder. */
  holder?: string;
  /** Why, for operators. */
  reason?: string;
  /**
   * The service renews the lock for as long as a stream lasts. A loss is told at once, and a process that is paused keeps its lock. Without
   * it the client renews the lock, which survives a restart of the service.
   */
  hold?: boolean;
}

export interface OnceOptions extends LockOptions {
  /** The period of the job: a start within half of it after the last one belongs to the same firing. */
  window: Duration;
  /** Run a firing again whose run failed, or whose host died. */
  retry?: boolean;
}

export interface Run {
  exit_code: number | null;
  since_micros: number;
  /** `null`: its end was not reported. */
  ended_micros: number | null;
  holder?: string;
  host?: string;
  pid?: number;
  token: number;
}

/** A verdict for monitoring. */
export interface Check {
  name: string;
  /** `warning`: the lock is held for too long. `critical`: no run has succeeded lately, or the last one failed. */
  status: 'ok' | 'warning' | 'critical' | 'unknown';
  /** The exit code of monitoring plugins: 0 for `ok`. */
  code: number;
  message: string;
  /** How long ago the last good run ended. */
  good_age_ms: number | null;
  /** How long the lock has been held; 0 if it is free. */
  held_ms: number | null;
  runs: { running: Run | null; last: Run | null; good: Run | null; now_micros: number } | null;
}

export type Once<T> = { ran: true; result: T; run?: undefined } | { ran: false; run: Run; result?: undefined };

/** A lock that was granted. */
export interface Lock extends AsyncDisposable {
  readonly name: string;
  /** It grows with each grant of this name. Give it to what the lock protects, so that a late write is refused. */
  readonly token: number;
  /** It is aborted when the lock is lost, with a `LostError` as its reason. A release does not abort it. */
  readonly signal: AbortSignal;
  /** Why the lock is no longer held. `undefined` while it is held. */
  readonly loss: LostError | undefined;
  /** Looks at the clock, so it is right also after the process was paused. */
  isHeld(): boolean;
  /** Throws if the lock is lost. Call it before each step that cannot be undone. */
  ensureHeld(): void;
  /** Throws `LostError` if the lock was lost before. A second call has the outcome of the first one. */
  release(): Promise<void>;
}

export class Client implements AsyncDisposable {
  /** `urls` are the addresses of one or more copies of the service. By default the variable FENCEPOST_URL. */
  constructor(urls?: string | string[], options?: ClientOptions);

  /** Waits for a lock. Throws `TimedOutError` after `wait`, and `BusyError` if `wait` is 0. */
  lock(name: string, options?: LockOptions): Promise<Lock>;

  /** Takes a lock if it is free. */
  tryLock(name: string, options?: Omit<LockOptions, 'wait'>): Promise<Lock | undefined>;

  /**
   * Runs `body` while a lock is held, and returns its result. Locks of the same name and mode that code in `body` takes are this lock. If
   * the lock is lost, the error is a `LostError`; if `body` fails, it is the error of `body`, with the loss as its property `lost`.
   */
  run<T>(name: string, body: (lock: Lock) => T | Promise<T>, options?: LockOptions): Promise<T>;

  /** Runs a job once for each firing, although several hosts start it. Its run is good unless `body` throws. */
  once<T>(name: string, options: OnceOptions, body: (lock: Lock) => T | Promise<T>): Promise<Once<T>>;

  /** Tells whether a job of `once` has succeeded within `maxAge`, and its lock is not held for longer than `maxHeld`. */
  check(name: string, limits: { maxAge?: Duration; maxHeld?: Duration; signal?: AbortSignal }): Promise<Check>;

  /**
   * Waits to be the leader, and calls `lead` whenever it is, again and again until `options.signal` is aborted. `lead` returns soon after
   * its `signal` is aborted, which is at the loss and at the end of the election. An error of `lead` ends the election, unless its term is
   * over.
   */
  elect(name: string, lead: (lock: Lock, signal: AbortSignal) => unknown, options?: Omit<LockOptions, 'wait'>): Promise<void>;

  /** Waits until what was cancelled is withdrawn, and closes the connections. It releases no lock. */
  close(): Promise<void>;

  [Symbol.asyncDispose](): Promise<void>;
}

/** All errors of this module, but the reason of a signal of yours. */
export class LockError extends Error {}

/** The lock was not granted, because others hold it. */
export class BusyError extends LockError {
  /** Those who hold it, if the access token may read that. */
  readonly holders: { holder?: string; host?: string; pid?: number; token: number }[];
  /** How many wait. */
  readonly waiters?: number;
}

/** The lock was not granted within `wait`. */
export class TimedOutError extends BusyError {}

/** The lock is lost: another one may hold it. */
export class LostError extends LockError {
  readonly loss: 'expired' | 'evicted' | 'deleted' | 'session_ended' | 'max_hold' | 'released' | 'closed';
  /** The reason that an operator gave. */
  readonly why?: string;
}

/** The access token is missing or unknown, has expired, or is not for this name. */
export class DeniedError extends LockError {}

/** No service has answered for 10 s. */
export class UnreachableError extends LockError {}

/** The certificate of the service is not trusted. */
export class CertificateError extends LockError {}

/** The request breaks a rule. The message says what to change. */
export class InvalidError extends LockError {}

/** The engine behind the service does not have this. */
export class UnsupportedError extends LockError {}
