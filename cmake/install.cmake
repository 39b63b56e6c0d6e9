# What an installed tree holds: library, header, CMake package, pkg-config file, tools and their manual pages.
include(CMakePackageConfigHelpers)
install(TARGETS mpr EXPORT mprTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/mpr.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT mprTargets NAMESPACE mpr:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/mpr)
file(WRITE ${CMAKE_BINARY_DIR}/mprConfig.cmake "include(\"\${CMAKE_CURRENT_LIST_DIR}/mprTargets.cmake\")\n")
write_basic_package_version_file(${CMAKE_BINARY_DIR}/mprConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/mprConfig.cmake ${CMAKE_BINARY_DIR}/mprConfigVersion.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/mpr)
configure_file(${CMAKE_CURRENT_LIST_DIR}/mpr.pc.in ${CMAKE_BINARY_DIR}/mpr.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/mpr.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(MPR_TOOLS AND NOT MPR_MINIMAL)
  foreach(tool train run convert inspect bench)
    if(TARGET mpr-${tool})
      install(TARGETS mpr-${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
      set_target_properties(mpr-${tool} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
      add_custom_command(TARGET mpr-${tool} POST_BUILD COMMAND mpr-${tool} --print-man > ${CMAKE_BINARY_DIR}/mpr-${tool}.1 VERBATIM)
      install(FILES ${CMAKE_BINARY_DIR}/mpr-${tool}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    endif()
  endforeach()
  # the page of operators: conventions by hand, the table by the tool that was just built
  set(ops_page ${CMAKE_BINARY_DIR}/OPS.md)
  add_custom_command(OUTPUT ${ops_page}
    COMMAND ${CMAKE_COMMAND} -E cat ${CMAKE_SOURCE_DIR}/docs/OPS.md > ${ops_page}
    COMMAND mpr-inspect --ops --markdown >> ${ops_page}
    DEPENDS mpr-inspect ${CMAKE_SOURCE_DIR}/docs/OPS.md VERBATIM)
  add_custom_target(ops_page ALL DEPENDS ${ops_page})
  install(FILES ${ops_page} DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
