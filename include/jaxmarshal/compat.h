/* The one place that depends on the CPython version, the C library or the compiler. */
#ifndef JAXMARSHAL_COMPAT_H
#define JAXMARSHAL_COMPAT_H

#include <Python.h>
#include <stddef.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000
#error "jaxmarshal needs Python 3.11 or later"
#endif
#if PY_VERSION_HEX >= 0x030C0000
#define JM_T_OBJECT Py_T_OBJECT_EX
#else
#include <structmember.h>
#define JM_T_OBJECT T_OBJECT_EX
#endif
#ifdef Py_GIL_DISABLED
#error "jaxmarshal relies on the GIL for the consistency of its caches: no free-threaded Python"
#endif

#if defined(__GNUC__) || defined(__clang__)
#define JM_LIKELY(x) __builtin_expect(!!(x), 1)
#define JM_UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define JM_LIKELY(x) (x)
#define JM_UNLIKELY(x) (x)
#endif

#if defined(__GLIBC__) || defined(__linux__)
#include <malloc.h>
#define JM_HAVE_ALLOCATION_SIZE 1
#elif defined(__APPLE__)
#include <malloc/malloc.h>
#define JM_HAVE_ALLOCATION_SIZE 1
#else
#define JM_HAVE_ALLOCATION_SIZE 0
#endif

/* A number that a dict gets anew, and no other dict ever had, whenever something in it changes: true
   of the dicts of modules and classes. (That of an ordinary object may share its values with the
   object, and then Python 3.13 gives it no new number.) */
#if PY_VERSION_HEX < 0x030E0000
#define JM_HAVE_DICT_VERSIONS 1
static inline uint64_t jm_dict_version(PyObject *dict) {
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif
    return ((PyDictObject *)dict)->ma_version_tag;
#if defined(__GNUC__) || defined(__clang__)
#pragma GCC diagnostic pop
#endif
}
#else
#define JM_HAVE_DICT_VERSIONS 0
static inline uint64_t jm_dict_version(PyObject *dict) {
    (void)dict;
    return 0;
}
#endif

/* What is known of changes to the dicts that are watched. */
typedef struct {
    uint64_t changes; /* how many were announced, and one */
    PyObject *last;   /* the dict that was last announced to change, borrowed, or NULL */
    uint64_t version; /* its version then */
    int is_lost;      /* was another one announced before that change was made? */
} jm_watched_dicts;

/* The same of the dict of an ordinary object; 0 says nothing. */
static inline uint64_t jm_object_dict_version(PyObject *dict) {
#if PY_VERSION_HEX < 0x030D0000
    return jm_dict_version(dict);
#else
    (void)dict;
    return 0;
#endif
}

/* The dict of a class, borrowed: classes made at run time keep it as long as they live. */
static inline PyObject *jm_class_dict(PyTypeObject *type) { return type->tp_dict; }

/* A number that a class gets anew whenever it or one of its bases changes. 0 says nothing: it has
   none now, and gets one when something is looked up in it. */
static inline unsigned int jm_class_version(PyTypeObject *type) {
#if PY_VERSION_HEX < 0x030C0000
    if (!(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
    return type->tp_version_tag;
}

/* Have a function, of Python or of jaxlib, be called by another pointer; returns the last one. Python
   forgets what it has specialized on the function, and inlines no call of it meanwhile (3.11 does
   where code names the function itself; what C calls goes by the pointer in all versions). */
static inline vectorcallfunc jm_swap_vectorcall(PyObject *function, vectorcallfunc call) {
    vectorcallfunc *place =
        (vectorcallfunc *)((char *)function + Py_TYPE(function)->tp_vectorcall_offset);
    vectorcallfunc before = *place;
    if (PyFunction_Check(function)) {
#if PY_VERSION_HEX >= 0x030C0000
        PyFunction_SetVectorcall((PyFunctionObject *)function, call);
        return before;
#else
        ((PyFunctionObject *)function)->func_version = 0;
#endif
    }
    *place = call;
    return before;
}

/* Have `x[...]` look its method up anew, after this class got another one. Python does so by itself,
   but from 3.13 on not for a class that has changed a thousand times: it has no version left then,
   so that nothing is told of changes. */
static inline void jm_forget_getitem(PyTypeObject *type) {
#if PY_VERSION_HEX >= 0x030D0000
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        ((PyHeapTypeObject *)type)->_spec_cache.getitem = NULL;
    }
#else
    (void)type;
#endif
}

/* Where objects keep the value of a member that `__slots__` made, in bytes; -1 for anything else. */
static inline Py_ssize_t jm_member_offset(PyObject *member) {
    PyMemberDef *found;
    if (!Py_IS_TYPE(member, &PyMemberDescr_Type)) return -1;
    found = ((PyMemberDescrObject *)member)->d_member;
    return found->type == JM_T_OBJECT ? found->offset : -1;
}

/* Is what a weak reference refers to still there? */
static inline int jm_weakref_is_alive(PyObject *reference) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *object = NULL;
    int alive = PyWeakref_GetRef(reference, &object) > 0;
    Py_XDECREF(object);
    return alive;
#else
    return PyWeakref_GET_OBJECT(reference) != Py_None;
#endif
}

/* Py_EnterRecursiveCall promises no more than a non-zero value on failure, and which one differs
   between versions. 0, or -1 with RecursionError set. */
static inline int jm_enter_recursive_call(const char *where) {
    return Py_EnterRecursiveCall(where) ? -1 : 0;
}

/* Bytes usable from `p`, the start of an allocation of the C library; 0 where nothing tells.
   Must not be called for a pointer that malloc did not return. */
static inline size_t jm_allocation_size(void *p) {
#if defined(__APPLE__)
    return malloc_size(p);
#elif JM_HAVE_ALLOCATION_SIZE
    return malloc_usable_size(p);
#else
    (void)p;
    return 0;
#endif
}

/* Where a class keeps what hands out its objects' buffers, or NULL. Borrows `cls`. */
static inline getbufferproc *jm_buffer_slot(PyTypeObject *cls) {
    return cls->tp_as_buffer == NULL ? NULL : &cls->tp_as_buffer->bf_getbuffer;
}

#endif
