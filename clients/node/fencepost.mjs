// The same module for both kinds of import, so that an error of one is an instance of the other's class.
export {
  Client, LockError, BusyError, TimedOutError, LostError, DeniedError, UnreachableError, CertificateError, InvalidError, UnsupportedError,
} from './fencepost.cjs';
