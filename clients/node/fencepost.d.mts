export * from './fencepost.cjs';
