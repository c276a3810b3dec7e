//! The command, seen from outside: real processes, each test with its own state folder.

mod basics;
mod busy;
mod chain;
mod crowd;
mod doctor;
mod etcd;
mod faults;
mod guard;
mod kit;
mod leases;
mod limits;
mod log;
mod operators;
mod pages;
mod paused;
mod pipe;
mod redis;
mod removed;
mod settings;
mod signals;
mod terminal;
mod tokens;
mod trouble;
mod waiting;
mod zookeeper;
