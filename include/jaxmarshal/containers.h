/* Looking into a dict where something was found before: no hashing, only public API. */
#ifndef JAXMARSHAL_CONTAINERS_H
#define JAXMARSHAL_CONTAINERS_H

#include <Python.h>

/* The items of a tuple or list, borrowed; those of a list stay only until Python code runs. */
static inline PyObject **jm_tuple_items(PyObject *tuple) {
    return ((PyTupleObject *)tuple)->ob_item;
}

static inline PyObject **jm_list_items(PyObject *list) {
    return ((PyListObject *)list)->ob_item;
}

/* The value at a remembered position if its key is still that very object, borrowed; NULL says
   nothing: the caller looks it up. Positions are those of PyDict_Next; in a dict from which nothing
   was ever deleted, the order of insertion. Needs the GIL; cannot fail. */
static inline PyObject *jm_dict_at(PyObject *dict, PyObject *key, Py_ssize_t position) {
    PyObject *found, *value;
    return PyDict_Next(dict, &position, &found, &value) && found == key ? value : NULL;
}

/* The value of `name`, an interned string, borrowed; or NULL: missing, or with an error set.
   `position`, 0 at first, is where it was found the last time. Needs the GIL. */
static inline PyObject *jm_dict_value(PyObject *dict, PyObject *name, Py_ssize_t *position) {
    PyObject *key, *value = jm_dict_at(dict, name, *position);
    if (value != NULL) return value;
    for (Py_ssize_t here = 0, next = 0; PyDict_Next(dict, &next, &key, &value); here = next) {
        if (key == name) {
            *position = here;
            return value;
        }
    }
    return PyDict_GetItemWithError(dict, name); /* under an equal string that is not interned */
}

#endif
