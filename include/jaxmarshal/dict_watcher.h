/* Hearing of changes to dicts; included by the one module that watches them. */
#ifndef JAXMARSHAL_DICT_WATCHER_H
#define JAXMARSHAL_DICT_WATCHER_H

#include "jaxmarshal/compat.h"

/* Has the change been made that was announced last? */
static inline int jm_last_change_is_made(const jm_watched_dicts *watched) {
    return watched->last == NULL || watched->version != jm_dict_version(watched->last);
}

/* Have all changes been made that were announced, as far as one can tell? */
static inline int jm_changes_are_made(const jm_watched_dicts *watched) {
    return !watched->is_lost && jm_last_change_is_made(watched);
}

/* Python 3.12 and later tell of each change to a watched dict, just before it is made. */
#if PY_VERSION_HEX >= 0x030C0000 && JM_HAVE_DICT_VERSIONS
static jm_watched_dicts *jm_told_of_changes;

static int jm_note_change(
    PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value
) {
    int gone = event == PyDict_EVENT_DEALLOCATED;
    (void)key;
    (void)value;
    jm_told_of_changes->changes++;
    if (!jm_last_change_is_made(jm_told_of_changes)) jm_told_of_changes->is_lost = 1;
    if (!gone || jm_told_of_changes->last == dict) {
        jm_told_of_changes->last = gone ? NULL : dict;
        jm_told_of_changes->version = jm_dict_version(dict);
    }
    return 0;
}

/* Have changes be noted there; the number of the watcher, or -1 where there is none to be had. */
static inline int jm_start_watching(jm_watched_dicts *watched) {
    int watcher = PyDict_AddWatcher(jm_note_change);
    jm_told_of_changes = watched;
    if (watcher < 0) PyErr_Clear();
    return watcher;
}

/* Watch one more dict. 0, or -1 with an exception set. Its version changes. */
static inline int jm_watch_dict(int watcher, PyObject *dict) { return PyDict_Watch(watcher, dict); }
#else
static inline int jm_start_watching(jm_watched_dicts *watched) {
    (void)watched;
    return -1;
}

static inline int jm_watch_dict(int watcher, PyObject *dict) {
    (void)watcher;
    (void)dict;
    return 0;
}
#endif

#endif
