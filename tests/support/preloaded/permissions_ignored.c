// Imitates a mount whose files all have mode 0777 and where chmod has no effect (WSL's /mnt/c without "metadata", exFAT, NTFS).
// NOLINK=1: hard links fail too (exFAT, FAT, many network shares).
// gcc -shared -fPIC -o drvfs.so permissions_ignored.c -ldl ; LD_PRELOAD=./drvfs.so DRVFS=/path/prefix program
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>
#include <string.h>
#include <stdlib.h>
#include <stdio.h>
#include <unistd.h>
#include <limits.h>
#include <fcntl.h>
static int under(const char*p){const char*x=getenv("DRVFS");char b[PATH_MAX];if(!x||!p)return 0;if(p[0]!='/'){if(!getcwd(b,sizeof b))return 0;strncat(b,"/",2);strncat(b,p,PATH_MAX-strlen(b)-1);p=b;return strstr(b,x)==b;}return strncmp(p,x,strlen(x))==0;}
static int underfd(int fd){char l[64],b[PATH_MAX];snprintf(l,64,"/proc/self/fd/%d",fd);ssize_t n=readlink(l,b,PATH_MAX-1);if(n<0)return 0;b[n]=0;return b[0]=='/'&&under(b);}
#include <errno.h>
#define open_up(s) ((s)->st_mode|=0777)
int link(const char*a,const char*b){static int(*f)(const char*,const char*);if(!f)f=dlsym(RTLD_NEXT,"link");if(getenv("NOLINK")&&under(b)){errno=EPERM;return -1;}return f(a,b);}
int linkat(int x,const char*a,int y,const char*b,int fl){static int(*f)(int,const char*,int,const char*,int);if(!f)f=dlsym(RTLD_NEXT,"linkat");if(getenv("NOLINK")&&under(b)){errno=EPERM;return -1;}return f(x,a,y,b,fl);}
#define W(name,sig,args,cond) int name sig{static int(*f)sig;if(!f)f=dlsym(RTLD_NEXT,#name);int r=f args;if(r==0&&(cond))open_up(s);return r;}
W(stat,(const char*p,struct stat*s),(p,s),under(p))
W(lstat,(const char*p,struct stat*s),(p,s),under(p))
W(fstat,(int fd,struct stat*s),(fd,s),underfd(fd))
W(fstatat,(int d,const char*p,struct stat*s,int fl),(d,p,s,fl),(p&&*p?under(p):underfd(d)))
W(stat64,(const char*p,struct stat64*s),(p,s),under(p))
W(lstat64,(const char*p,struct stat64*s),(p,s),under(p))
W(fstat64,(int fd,struct stat64*s),(fd,s),underfd(fd))
W(fstatat64,(int d,const char*p,struct stat64*s,int fl),(d,p,s,fl),(p&&*p?under(p):underfd(d)))
int chmod(const char*p,mode_t m){static int(*f)(const char*,mode_t);if(!f)f=dlsym(RTLD_NEXT,"chmod");return under(p)?0:f(p,m);}
int fchmod(int d,mode_t m){static int(*f)(int,mode_t);if(!f)f=dlsym(RTLD_NEXT,"fchmod");return underfd(d)?0:f(d,m);}
int fchmodat(int d,const char*p,mode_t m,int fl){static int(*f)(int,const char*,mode_t,int);if(!f)f=dlsym(RTLD_NEXT,"fchmodat");return under(p)?0:f(d,p,m,fl);}
